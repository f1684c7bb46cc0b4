"""The node schemas that a command's options ask for."""

from __future__ import annotations

import argparse
from typing import Any


def schemas(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """(host, object_info): from ``--object-info`` (then without a host), else from the classes here.

    Raises:
        CascadeError: a file or folder of the options is not there.
    """
    host, _classes, info = classes_and_schemas(args)
    return host, info


def classes_and_schemas(args: argparse.Namespace) -> tuple[Any, dict[str, type], dict[str, Any]]:
    """As `schemas`, with the classes themselves between; none with ``--object-info``."""
    from cascade_train.graph.check.schema import object_info, read_object_info

    if args.object_info is not None:
        return None, {}, read_object_info(args.object_info)
    from cascade_train.commands.run import place
    from cascade_train.host.headless import Quiet

    host, classes = place(args, Quiet())
    return host, classes, object_info(classes)
