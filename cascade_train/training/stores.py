"""Which store on disk holds what a frozen part makes of a dataset's samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cascade_train.data.caches import Kind, Store, open_store
from cascade_train.data.spec import Dataset
from cascade_train.digest import digest
from cascade_train.models.library import part_file
from cascade_train.models.spec import ModelsSpec, Part

if TYPE_CHECKING:
    from cascade_train.host.base import Host

_KINDS: dict[Part, Kind] = {"compressor": "latents", "text": "text", "image": "images"}


def store_for(dataset: Dataset, models: ModelsSpec, part: Part, host: Host) -> Store | None:
    """The store of what ``part`` makes of the dataset's samples; None where the dataset is not to be cached.

    Stores belong to a part's content, to runs laid over it and to the kind of device, whose rounding differs;
    those of texts also to what becomes of long captions.
    """
    spec, kind = dataset.cache, _KINDS.get(part)
    if spec is None or kind is None or not getattr(spec, kind):
        return None
    applied = models.applied if part == "text" else ()
    of = [part, part_file(models, part).content, applied, models.precision, host.device.partition(":")[0]]
    if part == "text" and models.captions != "cut":
        of.append(models.captions)
    name = digest(of)
    return open_store(host.folders.cache, kind, name, f"{part} of {models.name}", host.warn)
