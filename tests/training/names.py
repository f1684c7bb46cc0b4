"""What a run is named by, written down: every field of every description that enters a run's name.

``names.json`` beside this file holds, for each of these dataclasses, its fields with type, default and
whether they are local, and the digests of examples. It is append-only: people's run folders are named by
these digests.

    python tests/training/names.py

appends what is new, and refuses where something that is written down would change. (Where nobody can have a
run that would lose its name, delete ``names.json`` first, and it is written anew.)
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade_train.data.spec import BucketSpec, CacheSpec, CaptionSpec, Dataset, FolderSource, WeightedSource
from cascade_train.digest import canonical, digest
from cascade_train.errors import CascadeError
from cascade_train.models.spec import AppliedRun, ModelsSpec, PartFile
from cascade_train.sampling.spec import Prompts
from cascade_train.training.metrics import branch_of
from cascade_train.training.spec import (
    Block,
    FullTarget,
    LoRATarget,
    OptimizerSpec,
    Position,
    RunSpec,
    TokenSpec,
)

FILE = Path(__file__).with_name("names.json")
ROOTS: tuple[type, ...] = (RunSpec, Block, Prompts)
"""What digests are taken of; all else is found from their fields. Prompts name the pictures of a run."""

ROOMS = ("data", "models", "control", "training", "nano", "sampling")
"""Where descriptions are defined."""

Classes = Mapping[str, type]


def classes() -> dict[str, type]:
    """Every dataclass that may stand in a run's description, by name, found by walking the types of fields
    that enter digests.

    Where a type is a base class or a protocol, all that fulfil it count; so does what ``names.json`` names.
    """
    everything = _defined()
    known = _read()["classes"]
    found: dict[str, type] = {}
    waiting = [*ROOTS, *(everything[name] for name in known if name in everything)]
    while waiting:
        here = waiting.pop()
        if found.get(here.__name__) is here:
            continue
        if here.__name__ in found:
            raise ValueError(f"two descriptions are called {here.__name__}: a digest cannot tell them apart")
        found[here.__name__] = here
        hints = typing.get_type_hints(here)
        digested = [field for field in dataclasses.fields(here) if field.metadata.get("digest") is not False]
        for field in digested:
            for leaf in _leaves(hints[field.name]):
                if dataclasses.is_dataclass(leaf):
                    waiting.append(leaf)
                elif leaf.__module__.startswith("cascade_train"):
                    waiting += [each for each in everything.values() if _fulfils(each, leaf)]
    return dict(sorted(found.items()))


def fields_of(cls: type) -> dict[str, Any]:
    """Of each field its type, its default (canonical; none where it has to be given), whether it is local."""
    hints = typing.get_type_hints(cls)
    out = {}
    for field in dataclasses.fields(cls):
        about: dict[str, Any] = {"type": _type(hints[field.name])}
        if field.default is not dataclasses.MISSING:
            about["default"] = canonical(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            about["default"] = canonical(field.default_factory())
        if field.metadata.get("digest") is False:
            about["local"] = True
        out[field.name] = about
    return out


def broken(shipped: Mapping[str, Any], now: Classes) -> list[str]:
    """What would rename runs or make their descriptions unreadable: one line each."""
    lines = []
    for name, before in shipped["classes"].items():
        if name not in now:
            lines.append(f"{name} is gone")
            continue
        after = fields_of(now[name])
        for field, was in before.items():
            where = f"{name}.{field}"
            if field not in after:
                lines.append(f"{where} is gone")
                continue
            found = after[field]
            if not _widened(was["type"], found["type"]):
                lines.append(f"{where} was {_short(was['type'])} and is {_short(found['type'])}")
            if "default" in was and _short(was.get("default")) != _short(found.get("default", "required")):
                lines.append(
                    f"{where} was {_short(was['default'])} by default and is "
                    f"{_short(found.get('default', 'required'))}: give the new default another field or class"
                )
            if was.get("local", False) != found.get("local", False):
                lines.append(f"{where} {'enters' if was.get('local') else 'leaves'} the digest")
        lines += [
            f"{name}.{field} is new and has no default"
            for field in after.keys() - before.keys()
            if "default" not in after[field]
        ]
    for name, example in shipped["examples"].items():
        try:
            found = digest(built(example["value"], now))
        except (KeyError, TypeError, ValueError) as error:
            lines.append(f"the example '{name}' cannot be built: {error}")
            continue
        if found != example["digest"]:
            lines.append(f"the example '{name}' was named {example['digest']} and is named {found}")
    for name, about in shipped["positions"].items():
        try:
            found = names_of(position_of(about, shipped, now))
        except (KeyError, TypeError, ValueError) as error:
            lines.append(f"the position '{name}' cannot be built: {error}")
            continue
        if found != {key: about[key] for key in found}:
            lines.append(f"the position '{name}' has other names: {found}")
    return lines


def missing(shipped: Mapping[str, Any], now: Classes) -> list[str]:
    """What is not written down yet: one line each."""
    lines = []
    for name, cls in now.items():
        known = shipped["classes"].get(name, {})
        lines += [f"{name}.{field}" for field, about in fields_of(cls).items() if known.get(field) != about]
    lines += [f"the example '{name}'" for name in _examples() if name not in shipped["examples"]]
    lines += [f"an example of {name}" for name, cls in now.items() if not _covered(cls, shipped)]
    return lines


def built(value: Any, now: Classes) -> Any:
    """The description whose canonical form is ``value``."""
    if isinstance(value, list):
        return tuple(built(item, now) for item in value)
    if not isinstance(value, dict):
        return value
    given = {key: built(item, now) for key, item in value.items() if key != "is"}
    return _made(now[value["is"]], given)


def position_of(about: Mapping[str, Any], shipped: Mapping[str, Any], now: Classes) -> Position:
    """The position that ``about`` describes: a run among the examples, and blocks."""
    return Position(built(shipped["examples"][about["run"]]["value"], now), built(about["blocks"], now))


def names_of(position: Position) -> dict[str, str]:
    """All names that a position has: the run folder's, its own, that of its rows in the metrics."""
    return {"folder": position.spec.digest, "name": position.name, "branch": branch_of(position)}


def write() -> None:
    """Append to ``names.json`` what is new; make it where it is not there.

    Raises:
        ValueError: something that is written down would change.
    """
    shipped, now = _read(), classes()
    lines = broken(shipped, now)
    if lines:
        raise ValueError("runs would lose their names:\n" + "\n".join(lines))
    shipped["classes"] = {name: fields_of(cls) for name, cls in now.items()}
    for name, value in _examples().items():
        shipped["examples"].setdefault(name, {"digest": digest(value), "value": canonical(value)})
    for name, cls in now.items():
        if not _covered(cls, shipped):
            try:
                value = _filled(cls, now)
            except CascadeError as error:
                raise ValueError(f"write an example with a {name} into `_examples`: {error}") from None
            key = next(each for each in _keys(name) if each not in shipped["examples"])
            shipped["examples"][key] = {"digest": digest(value), "value": canonical(value)}
    for name, (run, blocks) in _positions().items():
        about = {"run": run, "blocks": canonical(blocks)}
        names = names_of(position_of(about, shipped, now))
        shipped["positions"].setdefault(name, {**about, **names})
    FILE.write_text(json.dumps(shipped, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read() -> dict[str, Any]:
    if not FILE.is_file():
        return {"classes": {}, "examples": {}, "positions": {}}
    shipped: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return shipped


def _defined() -> dict[str, type]:
    """Every dataclass of the rooms where descriptions are defined, by name."""
    out: dict[str, type] = {}
    for room in ROOMS:
        try:
            package = importlib.import_module(f"cascade_train.{room}")
        except ModuleNotFoundError:
            continue
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            module = importlib.import_module(info.name)
            for value in vars(module).values():
                if isinstance(value, type) and dataclasses.is_dataclass(value):
                    out.setdefault(value.__name__, value)
    return out


def _leaves(hint: Any) -> Iterator[type]:
    """The classes that ``hint`` is made of."""
    inner = [each for each in typing.get_args(hint) if each is not Ellipsis]
    if typing.get_origin(hint) is typing.Literal:
        return
    if inner:
        for each in inner:
            yield from _leaves(each)
    elif isinstance(hint, type):
        yield hint


def _fulfils(cls: type, base: type) -> bool:
    """Whether ``cls`` is a ``base``, or has all that the protocol ``base`` asks for."""
    if base in cls.__mro__:
        return True
    if not getattr(base, "_is_protocol", False):
        return False
    wanted = {name for name in (*vars(base), *vars(base).get("__annotations__", ())) if name[0] != "_"}
    return wanted <= {*dir(cls), *(field.name for field in dataclasses.fields(cls))}


def _type(hint: Any) -> Any:
    """``hint`` as JSON: a name, or {"any of" | "choice" | "tuple": […]}."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"any of": sorted((_type(each) for each in inner), key=_short)}
    if origin is typing.Literal:
        return {"choice": list(inner)}
    if origin is not None:
        name = getattr(origin, "__name__", str(origin))
        return {name: ["..." if each is Ellipsis else _type(each) for each in inner]}
    return getattr(hint, "__name__", str(hint))


def _widened(before: Any, after: Any) -> bool:
    """Whether whatever fitted the type ``before`` fits ``after`` too."""
    if before == after:
        return True
    alternatives = after["any of"] if isinstance(after, dict) and "any of" in after else [after]
    if isinstance(before, dict) and "any of" in before:
        return all(any(_widened(each, other) for other in alternatives) for each in before["any of"])
    if alternatives != [after]:
        return any(_widened(before, other) for other in alternatives)
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        ((kind, old),) = before.items()
        new = after[kind]
        if kind == "choice":
            return set(old) <= set(new)
        return len(old) == len(new) and all(_widened(one, two) for one, two in zip(old, new))
    return False


def _short(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _keys(name: str) -> Iterator[str]:
    yield name
    for number in range(2, 1000):
        yield f"{name} {number}"


def _covered(cls: type, shipped: Mapping[str, Any]) -> bool:
    """Whether every field of ``cls`` that enters the digest is set in some example."""
    set_: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("is") == cls.__name__:
                set_.update(value)
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    for example in shipped["examples"].values():
        walk(example["value"])
    wanted = {field.name for field in dataclasses.fields(cls) if field.metadata.get("digest") is not False}
    return (
        wanted <= set_
        if wanted
        else any(_short(cls.__name__) in _short(e) for e in shipped["examples"].values())
    )


def _made(cls: type, given: dict[str, Any]) -> Any:
    """A ``cls`` of the fields that enter digests; local ones that must be given are empty."""
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.metadata.get("digest") is False:
            given[field.name] = ""
    return cls(**given)


def _filled(cls: type, now: Classes, depth: int = 0) -> Any:
    """An instance of ``cls`` of which every field that enters digests differs from its default."""
    hints = typing.get_type_hints(cls)
    given = {}
    for field in dataclasses.fields(cls):
        if field.metadata.get("digest") is not False:
            default = None if field.default is dataclasses.MISSING else field.default
            given[field.name] = _other(hints[field.name], default, now, depth)
    return _made(now[cls.__name__], given)


def _other(hint: Any, default: Any, now: Classes, depth: int) -> Any:
    """Some value of the type ``hint``, other than ``default``; the same one each time."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in inner if each is not type(None)]
        plain = [each for each in rest if depth < 2 or each is not Dataset]
        return _other(min(plain or rest, key=lambda each: _short(_type(each))), default, now, depth)
    if origin is typing.Literal:
        return next(each for each in reversed(inner) if each != default)
    if origin is tuple:
        many = inner[-1] is Ellipsis
        items = tuple(_other(each, None, now, depth + 1) for each in (inner[:1] if many else inner))
        return items if items != default else items * 2
    if dataclasses.is_dataclass(hint):
        return _filled(hint, now, depth + 1)  # type: ignore[arg-type]
    if hint is bool:
        return not default
    if hint is int:
        return (default or 0) + 1
    if hint is float:
        return (default or 0.0) + 0.25
    if hint is str:
        return "a" if default != "a" else "b"
    implementations = [each for each in now.values() if _fulfils(each, hint)]
    return _filled(implementations[0], now, depth + 1)


def _examples() -> dict[str, Any]:
    """Descriptions as people have them."""
    models = ModelsSpec("anywhere", (PartFile("stage_c", "c0ffee", "/a"), PartFile("text", "beef", "/b")))
    folder = Dataset((WeightedSource(FolderSource("1234abcd", "/pictures")),))
    several = Dataset(
        (WeightedSource(folder, share=0.5), WeightedSource(FolderSource("ffff", "/more", False), repeats=3)),
        captions=CaptionSpec(prefix="a photo of ", shuffle_tags=True, keep_first=1, tag_dropout=0.1),
        buckets=BucketSpec(768, ("1/1", "3/4"), crop="center"),
        cache=CacheSpec(),
    )
    lora = RunSpec(models, folder, LoRATarget(), OptimizerSpec())
    tokens = TokenSpec((("cat", "^cat</w>$"),), ("^dog</w>$",), 1e-3)
    return {
        "a LoRA with every default": lora,
        "a DoRA with tokens": dataclasses.replace(
            lora,
            dataset=several,
            target=LoRATarget(16, 8.0, "attn, channelwise", "dora", tokens),
            optimizer=OptimizerSpec("sgd", 1e-2, schedule="cosine", warmup=10, ema=0.99),
            seed=7,
            batch_size=8,
            accumulation=4,
            label="my cat",
        ),
        "tokens alone": dataclasses.replace(lora, target=LoRATarget(modules="", tokens=tokens)),
        "full Stage C over a run": dataclasses.replace(
            lora,
            models=dataclasses.replace(
                models, precision="bf16", applied=(AppliedRun("dead", 0.5, "/there"),)
            ),
            target=FullTarget("stage_c", "random", also=("text",)),
            precision="bf16",
            loss_weight="adaptive",
            objective="v",
            offset_noise=0.1,
            caption_dropout=0.1,
            image_share=0.0,
            total_steps=5000,
        ),
        "Stage B": dataclasses.replace(
            lora, target=FullTarget("stage_b", pyramid_noise=False, latent_noise=0.2)
        ),
        "the pictures of a validation": (Prompts(("a cat", "a dog"), pictures=2, cfg_c=3.5), 1.0),
    }


def _positions() -> dict[str, tuple[str, tuple[Block, ...]]]:
    return {
        "the start": ("a LoRA with every default", ()),
        "after one block": ("a LoRA with every default", (Block(100),)),
        "after a block at its own rate": ("a DoRA with tokens", (Block(100), Block(50, 1e-5))),
    }


if __name__ == "__main__":
    try:
        write()
    except ValueError as error:
        sys.exit(str(error))
    print(FILE)
