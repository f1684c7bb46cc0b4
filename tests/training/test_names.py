"""Runs keep their names: no description that enters one changes under people who have such runs."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
import subprocess
import sys
from dataclasses import MISSING, dataclass, field, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

import pytest

from cascade_train.digest import local
from cascade_train.training.spec import Block, FullTarget, LoRATarget, RunSpec


@pytest.fixture(scope="module")
def names() -> ModuleType:
    """The module `names.py` beside this file."""
    found = importlib.util.spec_from_file_location("training_names", Path(__file__).with_name("names.py"))
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["training_names"] = module
    found.loader.exec_module(module)
    return module


@pytest.fixture
def shipped(names: ModuleType) -> dict[str, Any]:
    assert names.FILE.is_file()
    return names._read()


@pytest.fixture
def now(names: ModuleType) -> dict[str, type]:
    return names.classes()


def changed(cls: type, **changes: Any) -> type:
    """A copy of ``cls`` whose fields are changed: (type, field) by name, None to leave one out."""
    parts: dict[str, Any] = {}
    for each in dataclasses.fields(cls):
        given: dict[str, Any] = {"metadata": each.metadata}
        if each.default is not MISSING:
            given["default"] = each.default
        if each.default_factory is not MISSING:
            given["default_factory"] = each.default_factory
        parts[each.name] = (each.type, field(**given))
    parts.update(changes)
    own = {name: value for name, value in vars(cls).items() if isinstance(value, property)}
    fields = [(name, *change) for name, change in parts.items() if change is not None]
    other = make_dataclass(cls.__name__, fields, frozen=True, kw_only=True, namespace=own)
    other.__module__ = cls.__module__
    return other


def test_runs_keep_their_names(names: ModuleType, shipped: dict[str, Any], now: dict[str, type]) -> None:
    lines = names.broken(shipped, now)
    assert not lines, "people's runs would lose their names:\n" + "\n".join(lines)


def test_every_field_is_written_down(
    names: ModuleType, shipped: dict[str, Any], now: dict[str, type]
) -> None:
    lines = names.missing(shipped, now)
    assert not lines, "run python tests/training/names.py and look at the difference:\n" + "\n".join(lines)


def test_descriptions_are_found_from_the_run(now: dict[str, type]) -> None:
    wanted = "RunSpec LoRATarget FullTarget TokenSpec OptimizerSpec ModelsSpec PartFile AppliedRun Dataset "
    wanted += "WeightedSource FolderSource TarSource StreamSource WorldSource CaptionSpec BucketSpec Block "
    wanted += "Prompts"
    assert set(wanted.split()) <= now.keys()
    assert "CacheSpec" not in now, "it hangs on a local field, so it enters no name"


def test_what_stands_behind_a_protocol_is_found(
    names: ModuleType, shipped: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept(Protocol):
        def kept(self) -> bool: ...

    @dataclass(frozen=True)
    class Sharp:
        least: float = 0.0

        def kept(self) -> bool:
            return True

    Kept.__module__ = "cascade_train.data.filters"
    holder = make_dataclass("Holder", [("kept", tuple[Kept, ...], ())], frozen=True)
    defined = {**names._defined(), "Sharp": Sharp}
    monkeypatch.setattr(names, "ROOTS", (*names.ROOTS, holder))
    monkeypatch.setattr(names, "_defined", lambda: defined)
    found = names.classes()
    assert found["Sharp"] is Sharp
    assert "an example of Sharp" in names.missing(shipped, found) and not names.broken(shipped, found)


def test_accumulation_is_no_part_of_a_name(shipped: dict[str, Any]) -> None:
    assert shipped["classes"]["RunSpec"]["accumulation"]["local"]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (
            "RunSpec",
            {"caption_dropout": (float, field(default=0.5))},
            "caption_dropout was 0.05 by default",
        ),
        (
            "RunSpec",
            {"caption_dropout": (float, field())},
            '0.05 by default and is "required"',
        ),
        ("RunSpec", {"offset_noise": None}, "RunSpec.offset_noise is gone"),
        ("RunSpec", {"seed": (str, field(default="0"))}, 'RunSpec.seed was "int" and is "str"'),
        ("RunSpec", {"label": (str, field(default=""))}, "RunSpec.label enters the digest"),
        ("RunSpec", {"seed": (int, local(0))}, "RunSpec.seed leaves the digest"),
        ("RunSpec", {"precision": (Literal["fp32"], field(default="fp32"))}, "RunSpec.precision was"),
        ("Block", {"more": (int, field())}, "Block.more is new and has no default"),
        ("BucketSpec", {"crops": (int, field(default=1))}, "BucketSpec.crops was 0 by default"),
        ("FolderSource", {"content": (str, local())}, "FolderSource.content leaves the digest"),
        ("Prompts", {"steps_c": (int, field(default=30))}, "Prompts.steps_c was 20 by default"),
    ],
)
def test_a_change_is_caught(
    names: ModuleType,
    shipped: dict[str, Any],
    now: dict[str, type],
    name: str,
    changes: dict[str, Any],
    said: str,
) -> None:
    assert not names.broken(shipped, {**now, name: changed(now[name])}), "a copy alone is no change"
    lines = names.broken(shipped, {**now, name: changed(now[name], **changes)})
    assert any(said in line for line in lines), lines


def test_a_description_that_is_gone_or_named_otherwise_is_caught(
    names: ModuleType, shipped: dict[str, Any], now: dict[str, type]
) -> None:
    less = {name: cls for name, cls in now.items() if name != "LoRATarget"}
    assert "LoRATarget is gone" in names.broken(shipped, less)


def test_another_rule_for_names_is_caught(
    names: ModuleType, shipped: dict[str, Any], now: dict[str, type], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copy.deepcopy(shipped)
    example = other["examples"]["a LoRA with every default"]
    example["digest"] = "0" * 32
    assert any("was named 000" in line for line in names.broken(other, now))
    real = names.branch_of
    monkeypatch.setattr(names, "branch_of", lambda position: real(position)[::-1])
    lines = names.broken(shipped, now)
    assert len(lines) == len(shipped["positions"]) and "has other names" in lines[0]


def test_what_is_new_is_asked_for_and_then_appended(
    names: ModuleType, shipped: dict[str, Any], now: dict[str, type], tmp_path: Path, monkeypatch: Any
) -> None:
    @dataclass(frozen=True)
    class Sharpened:
        amount: float = 0.0

    parts = Literal["stage_c", "stage_b", "stage_a", "compressor", "text", "previewer", "another"]
    grown = {
        **now,
        "Block": changed(Block, weight_decay=(float | None, field(default=None))),
        "FullTarget": changed(FullTarget, part=(parts, field(default="stage_c"))),
        "Sharpened": Sharpened,
    }
    assert not names.broken(shipped, grown)
    lines = names.missing(shipped, grown)
    for wanted in ("Block.weight_decay", "FullTarget.part", "Sharpened.amount", "an example of Sharpened"):
        assert wanted in lines
    monkeypatch.setattr(names, "FILE", tmp_path / "names.json")
    names.write()  # anew
    assert names._read()["classes"] == shipped["classes"]
    # what was written before a class was added keeps its examples as they were
    names.FILE.write_text(json.dumps(shipped), encoding="utf-8")
    monkeypatch.setattr(names, "classes", lambda: grown)
    names.write()
    after = names._read()
    assert not names.missing(after, grown) and not names.broken(after, grown)
    assert {name: after["examples"][name] for name in shipped["examples"]} == shipped["examples"]
    monkeypatch.setattr(names, "classes", lambda: now)
    with pytest.raises(ValueError, match="Sharpened is gone"):
        names.write()


def test_the_script_says_where_it_wrote(names: ModuleType) -> None:
    before = names.FILE.read_bytes()
    script = Path(__file__).with_name("names.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert names.FILE.read_bytes() == before, "nothing was new"


def test_descriptions_come_back_from_what_run_json_holds(
    names: ModuleType, shipped: dict[str, Any], now: dict[str, type]
) -> None:
    value = names.built(shipped["examples"]["a DoRA with tokens"]["value"], now)
    assert isinstance(value, RunSpec) and isinstance(value.target, LoRATarget)
    assert value.target.rank == 16 and value.accumulation == 1
