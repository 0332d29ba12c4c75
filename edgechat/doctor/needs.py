"""What a bundle needs to run with some settings."""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.assembly import needs_importance
from edgechat.bundle import ON_CPU, Bundle
from edgechat.doctor.gap import Gap, gap_of
from edgechat.errors import BundleError, EngineError, SettingsError
from edgechat.memory_plan import MemoryPlan, plan_memory
from edgechat.runtime.engine import check_capacity
from edgechat.runtime.tensorrt.engines import NEEDED, check_buildable, disk_needed
from edgechat.settings import DIALECTS, Settings

TARGETS = {dialect: target for target, dialect in DIALECTS.items()}  # of edgechat export
PROVIDERS = dict.fromkeys(ON_CPU, "CPUExecutionProvider") | {"ort_cuda": "CUDAExecutionProvider"}
INT8_KV = (1, 32)  # the first ONNX Runtime whose attention reads an int8 cache


@dataclass(frozen=True)
class Needs:
    """``provider``: of ONNX Runtime, in at least the version ``onnxruntime``; ``tensorrt``: the
    oldest version that takes it. ``plan``: of its memory; ``engine_disk``: bytes for the engine
    that TensorRT builds. ``gaps``: what is wrong with the bundle or the settings, on every
    machine."""

    dialect: str
    provider: str | None = None
    onnxruntime: tuple[int, int] | None = None
    tensorrt: tuple[int, int] | None = None
    plan: MemoryPlan | None = None
    engine_disk: int | None = None
    precision: str | None = None
    kv_dtype: str | None = None
    gaps: tuple[Gap, ...] = ()

    @property
    def oldest(self) -> str:
        """The oldest TensorRT, such as 10.3."""
        return ".".join(map(str, self.tensorrt or ()))

    @property
    def on_gpu(self) -> bool:
        return self.dialect not in ON_CPU


def dialect_needs(dialect: str) -> Needs:
    """Of any bundle that speaks ``dialect``."""
    return Needs(dialect, provider=PROVIDERS.get(dialect), tensorrt=NEEDED.get(dialect))


def bundle_needs(bundle: Bundle, settings: Settings) -> Needs:
    """Of ``bundle``, whose files are compared with their checksums."""
    manifest = bundle.manifest
    gaps, plan = [], None
    dialect = manifest.graph.dialect
    try:
        bundle.verify()
        if dialect not in (*TARGETS, *ON_CPU):
            raise EngineError(
                f"the bundle speaks the dialect {dialect!r}, which this edgechat does not know; "
                "update edgechat, or export the bundle again with this version."
            )
        if dialect in NEEDED:
            check_buildable(bundle)
        capacity = settings.slots(manifest.max_capacity, window_asked=False)
        check_capacity(manifest, capacity, needs_importance(settings))
        plan = plan_memory(manifest, settings)
    except (BundleError, EngineError, SettingsError) as error:
        gaps.append(gap_of(str(error)))
    return Needs(
        dialect,
        provider=PROVIDERS.get(dialect),
        onnxruntime=INT8_KV if dialect == "ort_cpu" and manifest.kv_dtype == "int8" else None,
        tensorrt=NEEDED.get(dialect),
        plan=plan,
        engine_disk=disk_needed(bundle) if dialect in NEEDED else None,
        precision=manifest.precision,
        kv_dtype=manifest.kv_dtype,
        gaps=tuple(gaps),
    )
