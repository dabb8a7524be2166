"""What a mount of resctrl offers, from its folder ``info`` and the default group; read once per mount."""

from __future__ import annotations

import errno

from manager.errors import HostError
from manager.host.resctrl.tree import ResctrlTree
from manager.model.cache import (
    BandwidthResource,
    BandwidthUnit,
    CacheResource,
    Mask,
    Monitoring,
    Resctrl,
    Schemata,
    is_cache,
    parse_schemata,
    parse_sizes,
)

_MOST_PERCENT = 100
_MONITORED = "L3_MON"


def discover(tree: ResctrlTree) -> Resctrl | None:
    """Everything that is offered; None where resctrl is not mounted. Resources of a kind not known are left out.

    Raises HostError, and ValueError for what no kernel writes.
    """
    try:
        options = tree.options()
        if options is None:
            return None
        names = tree.folders("info")
        values = parse_schemata(read_text(tree, "schemata") or "")
        sizes = parse_sizes(read_text(tree, "size") or "")
        caches = [_cache(tree, name, values, sizes) for name in names if is_cache(name)]
        bandwidths = [_bandwidth(tree, name, values, options) for name in names]
        return Resctrl(
            tuple(one for one in caches if one is not None),
            tuple(one for one in bandwidths if one is not None),
            _monitoring(tree) if _MONITORED in names else None,
        )
    except OSError as error:
        raise HostError(f"read what resctrl offers: {error.strerror}", error.errno or 0) from error


def read_text(tree: ResctrlTree, path: str) -> str | None:
    """A file's text, None where there is no such file. Raises other OSErrors."""
    try:
        file = tree.open(path)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        return file.read()
    finally:
        file.close()


def _number(tree: ResctrlTree, path: str) -> int:
    """The number in a file, 0 where there is no such file: ``sparse_masks`` came with Linux 6.7."""
    return int(read_text(tree, path) or 0)


def _mask(tree: ResctrlTree, path: str) -> Mask:
    return Mask.parse(read_text(tree, path) or "0")


def _cache(tree: ResctrlTree, name: str, values: Schemata, sizes: Schemata) -> CacheResource | None:
    """None of one that has no domain online. A way's size is that of the default group by its ways."""
    held = {slot: Mask(value) for slot, value in sorted(values.items()) if slot.resource == name}
    if not held:
        return None
    folder = f"info/{name}"
    return CacheResource(
        name,
        _mask(tree, f"{folder}/cbm_mask"),
        max(_number(tree, f"{folder}/min_cbm_bits"), 1),
        _mask(tree, f"{folder}/shareable_bits"),
        _number(tree, f"{folder}/num_closids"),
        bool(_number(tree, f"{folder}/sparse_masks")),
        tuple(slot.domain for slot in held),
        tuple((slot.domain, sizes[slot] // mask.ways) for slot, mask in held.items() if mask and sizes.get(slot)),
    )


def _bandwidth(tree: ResctrlTree, name: str, values: Schemata, options: frozenset[str]) -> BandwidthResource | None:
    """None of what is no such resource.

    The file system does not tell the most that can be given: it is 100 where numbers are percent, else the largest
    that the default group has.
    """
    step = read_text(tree, f"info/{name}/bandwidth_gran")
    held = {slot.domain: value for slot, value in sorted(values.items()) if slot.resource == name}
    if step is None or not held:
        return None
    linear = bool(_number(tree, f"info/{name}/delay_linear"))
    if "mba_MBps" in options and name == "MB":
        unit = BandwidthUnit.MBPS
    else:  # Intel and Arm are linear in percent; AMD is not linear and absolute
        unit = BandwidthUnit.PERCENT if linear else BandwidthUnit.EIGHTH_GBPS
    return BandwidthResource(
        name,
        _number(tree, f"info/{name}/min_bandwidth"),
        int(step),
        _MOST_PERCENT if unit is BandwidthUnit.PERCENT else max(held.values()),
        unit,
        linear,
        _number(tree, f"info/{name}/num_closids"),
        tuple(held),
        (read_text(tree, f"info/{name}/thread_throttle_mode") or "").strip(),
    )


def _monitoring(tree: ResctrlTree) -> Monitoring:
    features = (read_text(tree, f"info/{_MONITORED}/mon_features") or "").split()
    return Monitoring(frozenset(features), _number(tree, f"info/{_MONITORED}/num_rmids"))
