"""Links in a stranger's folder: nothing outside is read, and nothing is written through one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cascade_train.data.dataset import open_dataset
from cascade_train.data.folder import folder_stamp
from cascade_train.data.sources import folder_dataset, tars_dataset
from cascade_train.data.spec import CaptionSpec
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders

pytestmark = pytest.mark.skipif(os.name == "nt", reason="making links needs a privilege there")


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(shade).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(rows).save(path)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """An input folder whose dataset ``set`` holds two pictures, and links to what lies outside and inside."""
    outside, inside = tmp_path / "outside", tmp_path / "in"
    for number in range(2):
        picture(inside / "set" / f"{number}.png", number)
        (inside / "set" / f"{number}.txt").write_text(f"mine {number}", encoding="utf-8")
    picture(outside / "private.png", 7)
    picture(outside / "folder" / "deep.png", 8)
    (outside / "secret.txt").write_text("a secret", encoding="utf-8")
    picture(inside / "more" / "shared.png", 9)
    (inside / "set" / "stolen.png").symlink_to(outside / "private.png")
    (inside / "set" / "stolen_folder").symlink_to(outside / "folder")
    (inside / "set" / "1.caption").symlink_to(outside / "secret.txt")
    (inside / "set" / "own.png").symlink_to(inside / "more" / "shared.png")
    (inside / "whole").symlink_to(outside / "folder")
    return inside


def host_of(inside: Path, follow: bool = False) -> HeadlessHost:
    return HeadlessHost(headless_folders(inside.parent / "out", inside, follow_links=follow), "cpu")


def names(host: HeadlessHost) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    dataset = replace(
        folder_dataset("set", recursive=True, host=host),
        captions=CaptionSpec(fallback="empty", extension=".caption"),
    )
    opened = open_dataset(dataset, multiple=8, native_side=64, host=host)
    return {opened.key(i): opened.captions(i) for i in range(len(opened))}, opened.report.warnings


def test_links_that_lead_outside_are_told_and_counted(linked: Path) -> None:
    found, warnings = names(host_of(linked))
    assert found == {"set/0.png": ("mine 0",), "set/1.png": ("mine 1",), "set/own.png": ("",)}
    (told,) = [warning for warning in warnings if "links" in warning]
    assert "3 links" in told and "stolen.png" in told and "stolen_folder" in told and "1.caption" in told


def test_links_are_followed_where_the_person_allows_it(linked: Path) -> None:
    found, warnings = names(host_of(linked, follow=True))
    assert set(found) == {f"set/{name}.png" for name in ("0", "1", "own", "stolen", "stolen_folder/deep")}
    assert found["set/1.png"] == ("a secret",)
    assert not any("outside" in warning for warning in warnings)
    again, _ = names(host_of(linked))
    assert len(again) == 3, "an index made with links is none for who must not follow them"


def test_a_path_through_a_link_is_refused_or_followed(linked: Path) -> None:
    for text in ("whole", "set/stolen_folder", str(linked / "whole")):
        with pytest.raises(CascadeError, match="link that leads outside"):
            folder_dataset(text, recursive=True, host=host_of(linked))
        folder_dataset(text, recursive=True, host=host_of(linked, follow=True))
    with pytest.raises(CascadeError, match="lies outside"):
        folder_dataset(str(linked.parent / "outside"), recursive=True, host=host_of(linked, follow=True))
    with pytest.raises(CascadeError, match="lies outside"):
        folder_dataset("../outside", recursive=True, host=host_of(linked, follow=True))


def test_a_tar_behind_a_link_is_refused(linked: Path) -> None:
    (linked.parent / "outside" / "a.tar").write_bytes(bytes(10240))
    (linked / "t").mkdir()
    (linked / "t" / "a.tar").symlink_to(linked.parent / "outside" / "a.tar")
    for text in ("t", "t/a.tar", "t/*.tar", "t/{a,b}.tar"):
        with pytest.raises(CascadeError, match="link that leads outside"):
            tars_dataset(text, shuffle=1, host=host_of(linked))


def test_only_links_have_not_a_picture_and_the_error_says_why(linked: Path) -> None:
    (linked / "only").mkdir()
    (linked / "only" / "a.png").symlink_to(linked.parent / "outside" / "private.png")
    with pytest.raises(CascadeError, match=r"no picture was found.*1 link that leads outside.*a\.png"):
        folder_dataset("only", recursive=True, host=host_of(linked))


def test_a_stamp_knows_what_is_followed(linked: Path) -> None:
    roots = host_of(linked).folders.link_roots()
    assert folder_stamp(linked / "set", True, links=roots) != folder_stamp(linked / "set", True, links=None)
    assert folder_stamp(linked / "set", True, links=roots) == folder_stamp(linked / "set", True, links=roots)


def test_pictures_behind_links_are_left_out_of_load_pictures(linked: Path) -> None:
    from cascade_train.sampling.pictures import chosen

    host = host_of(linked)
    assert {path.name for path in chosen("set", 0, 99, host)} == {"0.png", "1.png", "own.png"}
    assert isinstance(host.sink, Quiet) and "1 of the 4 pictures" in host.sink.warnings[0]
    assert len(chosen("set", 0, 99, host_of(linked, follow=True))) == 4


def test_load_image_follows_no_link_outside(linked: Path) -> None:
    from cascade_train.graph.core.load import located

    with pytest.raises(CascadeError, match="link that leads outside"):
        located(host_of(linked), "set/stolen.png")
    assert located(host_of(linked, follow=True), "set/stolen.png").name == "private.png"


def test_the_command_says_so(linked: Path, monkeypatch: Any, capsys: Any) -> None:
    from cascade_train.cli import main

    monkeypatch.chdir(linked.parent)
    for more, samples in (((), 3), (("--follow-links",), 5)):
        # the working folder may be read; from elsewhere the folder that is named alone
        monkeypatch.chdir(linked / "more")
        words = ["dataset", "inspect", str(linked / "set"), "--nano", "--json", "--captions", "file name"]
        code = main([*words, *more, "--output-dir", str(linked.parent / "out")])
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert code == 0 and said["samples"] == samples, said


@pytest.mark.parametrize("place", ["", "checkpoints", "metrics.jsonl", "run.lock", "checkpoints/x"])
def test_nothing_is_written_through_a_link_in_a_run_folder(
    place: str, studio: ModuleType, models: Any, tmp_path: Path
) -> None:
    from cascade_train.training import run

    host, spec = host_of(tmp_path / "in"), studio.spec("lora", models)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("as it was", encoding="utf-8")
    folder = host.folders.runs / spec.digest
    link = folder / place if place else folder
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere / ("kept" if "." in place else ""))
    with pytest.raises(CascadeError, match="nothing is written through it"):
        position = run.start(spec, host)
        run.train(position, 1, host=host)
    assert [path.name for path in elsewhere.iterdir()] == ["kept"]
    assert (elsewhere / "kept").read_text(encoding="utf-8") == "as it was"
