"""What the text and metadata files beside a picture say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from cascade_train.data.entry import WRITTEN
from cascade_train.data.probe import json_trouble, read_json, read_text

TEXT_LIMIT = 1 << 20
"""Bytes; what is longer is no caption and no metadata of one picture."""


@dataclass
class Said:
    """``texts`` by ending (``.txt``), metadata by field, and why any of it cannot be used."""

    texts: dict[str, str] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    bad: str = ""

    def say(self, kind: str, data: bytes) -> None:
        """Take in a text or metadata file with the ending ``kind``."""
        try:
            content = read_text(data)
            if kind == ".json":
                fields = as_metadata(read_json(content))
                metadata_json(fields).encode("utf-8")  # half a surrogate pair is no text
                self.meta.update(fields)
                if isinstance(written := self.meta.get(WRITTEN), dict):
                    self.meta[WRITTEN] = {k: v for k, v in written.items() if k not in fields}
            else:
                self.texts[kind] = content
        except UnicodeDecodeError:
            self.bad = self.bad or f"{kind} is not UTF-8"
        except (ValueError, RecursionError) as error:
            self.bad = self.bad or json_trouble(kind, error)


def metadata_json(meta: dict[str, Any]) -> str:
    return json.dumps(meta, ensure_ascii=False, default=str)


def as_metadata(value: Any) -> dict[str, Any]:
    """A metadata file's content as fields; a bare string or list of strings is the caption."""
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, (str, list)):
        return {"caption": value}
    return {}
