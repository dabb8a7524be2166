"""All experiments, and what of the studies cannot be reproduced on such a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.reproduction import (
    cost_tables,
    kernel_figures,
    load_figures,
    machine_figures,
    memcached_figures,
    reaction_figures,
    spike_figures,
    vm_figures,
    wiki_figures,
)
from deploy.reproduction.experiment import Experiment, Study
from manager.errors import SettingsError

CATALOGUE: tuple[Experiment, ...] = (
    *cost_tables.EXPERIMENTS,
    *wiki_figures.EXPERIMENTS,
    *spike_figures.EXPERIMENTS,
    *memcached_figures.EXPERIMENTS,
    *load_figures.EXPERIMENTS,
    *reaction_figures.EXPERIMENTS,
    *machine_figures.EXPERIMENTS,
    *kernel_figures.EXPERIMENTS,
    *vm_figures.EXPERIMENTS,
)


@dataclass(frozen=True, slots=True)
class NotHere:
    """A figure or table that is not reproduced, and why."""

    study: Study
    figure: str
    reason: str


_LLC = "needs a processor whose last-level cache can be divided and measured"
_SOCKETS = "needs several sockets, hyperthreads and 24 hardware threads"
NOT_HERE: tuple[NotHere, ...] = (
    NotHere(Study.WEIGHTS, "Figure 4", "compares Linux 3.0 and 3.4, which Debian no longer ships"),
    NotHere(Study.RECONCILING, "Figure 2", _LLC),
    NotHere(Study.RECONCILING, "Table 1", "needs 20 client machines and a network card with flow affinity"),
    NotHere(Study.RECONCILING, "Table 3", f"SPEC CPU2006 is not free; it {_LLC}"),
    NotHere(Study.DRAFT, "Tables 1, 4 and 6, Figures 1 to 3", _SOCKETS),
    NotHere(Study.DRAFT, "Table 3", f"{_SOCKETS}, and a last-level cache to contend for"),
    NotHere(Study.SERVICES, "Figure 2", "scaling to 36 cores needs as many"),
    NotHere(Study.SERVICES, "Figures 5, 12 and 13", _LLC),
    NotHere(
        Study.SERVICES,
        "Figures 3, 6 and 7",
        "the load generator does not vary keys' sizes or files; nothing to learn of the product",
    ),
    NotHere(Study.SERVICES, "Figure 8", "compares containers with bare metal; the product is about VMs"),
    NotHere(Study.SERVICES, "Table V, Figure 11b", "needs hyperthreads"),
    NotHere(Study.SERVICES, "Table VI", "needs a network card with several queues, and cores to serve them"),
    NotHere(
        Study.SERVICES,
        "Section V.D",
        "memory below the data set needs a disk whose delay is like theirs; deploy/demo --scenario resources has"
        " the product's side",
    ),
    NotHere(
        Study.CALADAN,
        "Slides 23 to 30",
        "needs memory-bandwidth counters, and reactions within microseconds inside the service",
    ),
)


def select(names: Sequence[str]) -> tuple[Experiment, ...]:
    """The experiments of these names in the catalogue's order, or all. Raises SettingsError for one that there is"
    " not."""
    known = [experiment.name for experiment in CATALOGUE]
    for name in names:
        if name not in known:
            raise SettingsError(f"--only {name}: there is no such experiment; use one of {', '.join(known)}")
    return tuple(experiment for experiment in CATALOGUE if not names or experiment.name in names)
