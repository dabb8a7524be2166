"""Schemas of admission: may a VM come to a host?"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from manager.model.fields import NAME_PATTERN, Count, Name, Schema, Text
from manager.model.interference import BatchClass
from manager.model.registration import VmClass
from manager.model.verdict import FitVerdict

_TIER = NAME_PATTERN.removesuffix("$") + "(/" + NAME_PATTERN.removeprefix("^").removesuffix("$") + ")?$"
Factor = Annotated[float, Field(ge=0)]
Vcpus = Annotated[int, Field(ge=1, le=256, description="1 to 256")]
Demand = Annotated[float, Field(ge=0.01, le=256, description="0.01 to 256")]
BatchLoss = Annotated[float, Field(ge=0.05, le=1, description="0.05 to 1")]
Rps = Annotated[float, Field(ge=0.01, le=1e5, description="0.01 to 100000")]


class AdmissionIn(Schema):
    """A VM that may come: a registered one, by its name, or any other. What is given counts before what is known."""

    vm: Name | None = Field(default=None, description="a registered VM: what is not given is taken from it")
    vm_class: VmClass | None = Field(default=None, alias="class", description="null: that of the registered VM")
    vcpus: Vcpus | None = Field(default=None, description="null: those of the registered VM")
    demand_pcpus: Demand | None = Field(
        default=None,
        description="CPU seconds a second that it wants; null: as the registered VM does, else all its vCPUs",
    )
    like: Annotated[str, Field(pattern=_TIER)] | None = Field(
        default=None,
        description="application or application/tier as whose VMs it serves requests; null: as the registered VM does",
    )
    rate_rps: Rps | None = Field(default=None, description="requests per second; null: as many as one of those VMs")
    policy: Name | None = Field(default=None, description="an installed policy; null: the one in force")
    max_batch_loss: BatchLoss | None = Field(
        default=None,
        description="part of their CPU time that batch VMs may lose; null: by the registered max_slowdown, or any",
    )
    minutes: Annotated[float, Field(ge=1, le=60, description="history that the host's twin is made of")] = 60


class AdmissionVm(Schema):
    """The VM as it was judged."""

    vm: Name | None
    vm_class: VmClass = Field(alias="class")
    vcpus: Count
    like: str | None = Field(description="application and tier after which it is simulated; null: it serves none")
    wants_pcpus: float | None = Field(description="CPU seconds a second; null: only a simulation would tell")
    gets_pcpus: float | None = Field(description="simulated; null: not simulated")


class AdmissionFactors(Schema):
    """Consolidation factors: what VMs want of the CPU over what there is, without the VM and with it."""

    pcpus: Count
    critical_without: Factor
    critical_with: Factor | None = Field(description="null: it is not known what the VM wants")
    total_without: Factor
    total_with: Factor | None = Field(description="null as above")


class SpanOut(Schema):
    """A simulated percentile with its interval."""

    ms: float
    low_ms: float
    high_ms: float


class AdmissionApplication(Schema):
    """What becomes of an application's SLA: simulated. ``violated``: shares of intervals."""

    application: Name
    percentile: float
    target_ms: float
    without: SpanOut | None = Field(description="null: it comes with the VM")
    then: SpanOut | None = Field(alias="with", description="null: it would answer nothing")
    violated_without: float
    violated_with: float


class AdmissionRefusal(Schema):
    """An application of which nothing is predicted, and why."""

    application: Name
    reason: str


class AdmissionTable(Schema):
    """What the interference table of an application says of its present load with the VM there: measured."""

    application: Name
    host_type: Text
    batch: BatchClass = Field(description="class of the batch VMs with the VM among them")
    max_loss: float | None = Field(description="part of their CPU time that batch VMs may lose; null: any")
    rate_rps: float | None = Field(description="present load, req/s; null: not known")
    load_rps: float | None = Field(description="largest load of that class that is known to do; null: none is")
    violated_rps: float | None = Field(description="from this load on it does not; null: none is known")
    verdict: FitVerdict | None = Field(description="null: the table does not say")
    reason: Text


class AdmissionOut(Schema):
    """Whether a VM may come to a host, with the reasons; see docs/how-to/fleet.md."""

    host: Name
    vm: AdmissionVm
    policy: Name
    verdict: FitVerdict
    reasons: list[str]
    simulated: bool = Field(description="whether response times were predicted, by the host's twin")
    seeds: Count
    consolidation: AdmissionFactors | None = Field(description="null: no history of this host")
    applications: list[AdmissionApplication]
    refused: list[AdmissionRefusal]
    tables: list[AdmissionTable] = Field(description="by application; empty: no batch VM, or no SLA there")
    missing: list[str] = Field(description="what is missing for a better answer")
