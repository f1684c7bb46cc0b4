"""A word that is trained and that no caption says is an error before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

from cascade_train.data.sources import combine, folder_dataset, tars_dataset
from cascade_train.data.spec import CaptionSpec, Dataset
from cascade_train.errors import CascadeError
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import run, said
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import LoRATarget, TokenSpec

NEW = TokenSpec((("crescent", "^star</w>$"),))
EXISTING = TokenSpec((), ("^circle</w>$",))


class Room:
    """A host and datasets of a few captions under it."""

    def __init__(self, studio: ModuleType, models: ModelsSpec, root: Path) -> None:
        self.studio, self.models, self.root = studio, models, root
        self.host = studio.CountingHost(root / "output")
        self.host._folders = replace(self.host.folders, extra_read=(root,))

    def dataset(self, *captions: str, name: str = "pictures", **spec: Any) -> Dataset:
        folder = self.root / name
        folder.mkdir()
        for number, caption in enumerate(captions):
            Image.new("RGB", (64, 64), (20 * (number % 12), 0, 0)).save(folder / f"{number:03}.png")
            (folder / f"{number:03}.txt").write_text(caption, encoding="utf-8")
        found = folder_dataset(str(folder), recursive=False, host=self.host)
        return found.with_captions(CaptionSpec(**spec))

    def train(self, dataset: Dataset, tokens: TokenSpec, **changes: Any) -> run.Position:
        target = changes.pop("target", LoRATarget(modules="", tokens=tokens))
        spec = self.studio.spec("lora", self.models, target=target, dataset=dataset, batch_size=2, **changes)
        return run.train(run.start(spec, self.host), 1, host=self.host)[0]

    def refused(self, dataset: Dataset, tokens: TokenSpec, **changes: Any) -> CascadeError:
        with pytest.raises(CascadeError, match=r"no caption says|is never said") as told:
            self.train(dataset, tokens, **changes)
        assert self.host.trained == 0 and not list(self.root.rglob("checkpoints"))
        return told.value


@pytest.fixture
def room(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> Room:
    return Room(studio, models, tmp_path)


LONG = "a small red circle on the left, " * 8
"""More than the text model reads."""


@pytest.mark.parametrize(
    ("caption", "shown"),
    [
        ("a red [Crescent] on black", "'a red [Crescent] on black' (writes [Crescent])"),
        ("a red crescent on black", "'a red crescent on black' (writes crescent)"),
        ("a red [crescents] on black", "(writes [crescents])"),
        ("a red [cresent] on black", "(writes cresent)"),
        (f"{LONG}[crescent]", "are read)"),
        ("a red circle on black", "Captions are such as 'a blue square'"),
    ],
)
def test_a_new_word_that_no_caption_says_as_it_is_written_is_refused(
    room: Room, caption: str, shown: str
) -> None:
    error = room.refused(room.dataset("a blue square", caption), NEW)
    assert "no caption says [crescent]," in str(error) and shown in str(error)
    assert error.typed == ("new_tokens", "crescent")
    assert "Write [crescent] into the captions exactly so" in str(error)


def test_an_existing_word_that_no_caption_says_is_refused(room: Room) -> None:
    error = room.refused(room.dataset("a red square", f"{LONG.replace('circle', 'star')} circle"), EXISTING)
    assert "a word that '^circle</w>$' finds" in str(error) and "tokens that are read" in str(error)
    assert error.typed == ("existing_tokens", "^circle</w>$")


@pytest.mark.parametrize(
    ("captions", "tokens", "spec"),
    [
        (("a red [crescent] on black",), NEW, {}),
        (("a red square", "a red,[crescent]!"), NEW, {}),
        (("a red square",), NEW, {"prefix": "a [crescent], "}),
        (("a red square",), NEW, {"suffix": " [crescent]"}),
        (("A Red CIRCLE on black",), EXISTING, {}),
        (("[circle]",), EXISTING, {}),
        (("a circle",), TokenSpec((), ("^(circle|cross)</w>$",)), {}),
        (("red, " * 40 + "[crescent]",), NEW, {"shuffle_tags": True}),
        (("red, " * 40 + "[crescent]",), NEW, {"tag_dropout": 0.9}),
        (("a red square\na red [crescent]",), NEW, {"lines": True}),
    ],
)
def test_what_some_draw_says_is_said(
    room: Room, captions: tuple[str, ...], tokens: TokenSpec, spec: dict[str, Any]
) -> None:
    assert room.train(room.dataset(*captions, "a blue square", **spec), tokens).step == 1


def test_tags_that_never_come_within_what_is_read_say_nothing(room: Room) -> None:
    caption = "[crescent], red"
    room.refused(room.dataset(caption, prefix=LONG, shuffle_tags=True, name="behind a prefix"), NEW)
    room.refused(room.dataset(caption, tag_dropout=1.0, name="always dropped"), NEW)
    room.refused(room.dataset(caption, name="no captions at all"), NEW, caption_dropout=1.0)
    kept = room.dataset(caption, tag_dropout=1.0, keep_first=1, name="always kept")
    assert room.train(kept, NEW).step == 1


def test_a_word_beside_a_lora_is_looked_for_too(room: Room) -> None:
    room.refused(room.dataset("a square"), NEW, target=LoRATarget(rank=1, alpha=1.0, tokens=NEW))


def test_the_second_of_two_words_is_missed(room: Room) -> None:
    both = TokenSpec((("one", "^star</w>$"), ("two", "^star</w>$")))
    error = room.refused(room.dataset("a [one] square"), both)
    assert "no caption says [two]," in str(error) and error.typed == ("new_tokens", "two")


def test_one_concept_among_many_pictures_is_found_wherever_it_lies(room: Room, monkeypatch: Any) -> None:
    """Sources are read by turns, so a small one after a large one is found at once."""
    monkeypatch.setattr(said, "BATCH", 2)
    many = room.dataset(*["a red square"] * 30, name="many")
    few = room.dataset("a [crescent]", name="few")
    assert room.train(combine([many, few], [1, 1], [0.0, 0.0]), NEW).step == 1
    assert not [text for text in room.host.sink.texts if "looking for the trained words" in text]


def test_captions_in_tars_and_a_word_of_a_run_laid_over_the_models(room: Room) -> None:
    import io
    import tarfile

    def packed(name: str, caption: str) -> Dataset:
        with tarfile.open(room.root / name, "w") as tar:
            for number in range(2):
                picture = io.BytesIO()
                Image.new("RGB", (64, 64), (number, 0, 0)).save(picture, "PNG")
                for ending, data in (("png", picture.getvalue()), ("txt", caption.encode())):
                    member = tarfile.TarInfo(f"{number}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        return tars_dataset(str(room.root / name), shuffle=0, host=room.host)

    taught = room.train(packed("said.tar", "a red [crescent]"), NEW)
    room.models = apply_trained(room.models, taught)
    on = TokenSpec((), (r"^\[crescent\]$",))
    assert room.train(packed("again.tar", "a blue [crescent]"), on).step == 1
    with pytest.raises(CascadeError, match=r"no caption says a word that '\^\\\[crescent"):
        room.train(packed("not.tar", "a blue Crescent"), on)


def test_the_words_of_the_resume_tests_move(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    """Else they would show that rows which nobody trains come back as they were."""
    host = studio.CountingHost(tmp_path)
    start = run.start(studio.spec("lora", models), host)
    one, _ = run.train(start, 1, host=host)
    six, _ = run.train(one, 5, host=host)
    first, last = (run.trained(each).tensors["tokens.rows"] for each in (one, six))
    assert all(not torch.equal(before, after) for before, after in zip(first, last))
