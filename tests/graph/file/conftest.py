"""Makes the helper modules beside this file importable, also from `record_pairs.py`'s folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def rule_info() -> dict[str, Any]:
    """The schemas of the rule nodes."""
    from rule_nodes import NODE_CLASS_MAPPINGS

    from cascade_train.graph.check.classes import object_info

    return object_info(NODE_CLASS_MAPPINGS)
