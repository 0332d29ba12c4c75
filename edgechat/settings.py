"""Profiles (YAML) and how they, the caller and the bundle together settle a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import yaml

from edgechat.device import Device
from edgechat.errors import ProfileError, SettingsError
from edgechat.paths import read_text
from edgechat.runtime.kv_cache import PREFILL_CHUNK
from edgechat.runtime.policies import POLICIES, Policy, make_policy
from edgechat.runtime.sampling import SamplingSettings
from edgechat.runtime.upkeep import Upkeep
from edgechat.validate import Invalid, build

DEFAULT_PROFILE = "chat"
DIALECTS = {  # what a bundle of each export target speaks
    "cpu": "ort_cpu",
    "cuda": "ort_cuda",
    "jetson-jp7": "tensorrt_10_15",
    "jetson-jp6": "tensorrt_10_3",
}
CHOICES: dict[str, tuple[str | None, ...]] = {
    "policy": POLICIES,
    "kv": (None, "fp32", "int8"),
    "coherence_check": ("off", "report", "retry"),
    "target": (None, *DIALECTS),
}
LARGEST_ARCHIVE = 1 << 20  # MiB
LARGEST_CHUNK = 8192  # tokens
WHOLE = (
    "sinks",
    "archive_mib",
    "recall_blocks",
    "pinned_questions",
    "cache_purge_interval",
    "history_summary",
    "max_tokens",
)


@dataclass(frozen=True)
class Settings:
    """A profile's content.

    ``policy``: key (sinks, key tokens and a window), window (sinks and a window; both go on for
    ever) or full (stops at the bundle's capacity). ``cache_window``: tokens the cache holds
    besides the ``sinks`` first ones; ``key_token_ratio``: part of it that key tokens may take.
    ``target``: what to export for; ``capacity``: most tokens the device should hold, ``kv``: the
    KV precision it should have (fp32 or int8): all three are what export takes, and a longer
    window shrinks. ``prefill_chunk``: most tokens a prefill step feeds.
    ``archive_mib``: disk space for evicted blocks (0: forget them), in ``archive_folder`` (None:
    in edgechat's cache folder). ``prefill_optimization``: keep the system prompt's keys and
    values on disk for the next start. ``threads``: None uses the cores this process may run on;
    ``allow_fallback``: run a bundle for CUDA on the CPU where CUDA is missing; ``max_tokens``:
    longest reply. ``device``: what ``edgechat plan`` reckons with. The rest:
    :class:`~edgechat.runtime.conversation.Upkeep`.
    """

    description: str = ""
    policy: str = "key"
    cache_window: int = 1536
    key_token_ratio: float = 0.2
    sinks: int = 4
    target: str | None = None
    capacity: int | None = None
    kv: str | None = None
    prefill_chunk: int = PREFILL_CHUNK
    archive_mib: int = 1024
    archive_folder: str | None = None
    recall_blocks: int = 2
    pinned_questions: int = 3
    delta_threshold: float = 0.1
    cache_purge_interval: int = 0
    prefill_optimization: bool = False
    coherence_check: str = "off"
    history_summary: int = 0
    threads: int | None = None
    allow_fallback: bool = False
    max_tokens: int = 512
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    device: Device | None = None

    def __post_init__(self) -> None:
        if self.cache_window < 16:
            raise SettingsError(f"the window must be at least 16 tokens, not {self.cache_window}.")
        if self.capacity is not None and self.capacity < 16:
            raise SettingsError(f"capacity must be at least 16 tokens, not {self.capacity}.")
        if not 16 <= self.prefill_chunk <= LARGEST_CHUNK:
            raise SettingsError(
                f"prefill_chunk must be from 16 to {LARGEST_CHUNK:,}, not {self.prefill_chunk:,}."
            )
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                shown = ", ".join(str(k) for k in known if k is not None)
                raise SettingsError(f"{name} {getattr(self, name)!r} is unknown; choose {shown}.")
        for name in ("key_token_ratio", "delta_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} must be from 0 to 1, not {getattr(self, name)}.")
        for name in WHOLE:
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} must be 0 or more, not {getattr(self, name)}.")
        if self.archive_mib > LARGEST_ARCHIVE:
            raise SettingsError(
                f"archive_mib must be at most {LARGEST_ARCHIVE:,}, not {self.archive_mib:,}."
            )
        if self.recall_blocks > 256:
            raise SettingsError(f"recall_blocks must be at most 256, not {self.recall_blocks}.")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise SettingsError(f"threads must be between 1 and 1024, not {self.threads}.")

    def override(self, **values: object) -> Settings:
        """A copy with the values that are not None replaced; sampling fields go inside."""
        given = {k: v for k, v in values.items() if v is not None}
        inner = {f.name for f in dataclasses.fields(SamplingSettings)} & given.keys()
        base = given.pop("sampling", self.sampling)
        sampling = dataclasses.replace(base, **{k: given.pop(k) for k in inner})  # type: ignore[type-var]
        return dataclasses.replace(self, sampling=sampling, **given)  # type: ignore[arg-type]

    @property
    def keys(self) -> int:
        """Key tokens the cache holds at most, of a window of ``cache_window``."""
        return int(self.key_token_ratio * self.cache_window)

    def make_policy(self) -> Policy:
        return make_policy(self.policy, self.sinks, self.keys)

    @property
    def recalls(self) -> bool:
        return self.policy != "full" and self.archive_mib > 0 and self.recall_blocks > 0

    def upkeep(self) -> Upkeep:
        return Upkeep(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Upkeep)})

    def slots(self, most: int, window_asked: bool) -> int:
        """Slots of the KV cache for a bundle that allows ``most``.

        A profile's window shrinks to fit; one the user asked for is refused when it does not.
        """
        if self.capacity is not None and not window_asked:
            most = min(most, self.capacity)
        if self.policy == "full" and not window_asked:
            return most
        wanted = self.cache_window + self.sinks
        if wanted > most and window_asked:
            raise SettingsError(
                f"window {self.cache_window:,} + sinks {self.sinks} is more than the "
                f"{most:,} tokens the bundle allows; choose less or export with --capacity."
            )
        if self.sinks >= min(wanted, most) // 2:
            raise SettingsError(
                f"{self.sinks} sinks leave too little of a cache of {min(wanted, most):,} tokens."
            )
        return min(wanted, most)


def profile_names() -> list[str]:
    folder = resources.files("edgechat.profiles")
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))


def load_profile(names: str) -> Settings:
    """The profile called ``names``, or a ``.yaml`` file's; of several, joined by commas, later
    ones win (``npc,small-cpu``). ProfileError for unknown names, keys and values."""
    values: dict[str, object] = {}
    sampling: dict[str, object] = {}
    for name in names.split(","):
        found = _read_profile(name.strip())
        inner = found.pop("sampling", {})
        assert isinstance(inner, dict)
        values.update(found)
        sampling.update(inner)
    values["sampling"] = sampling
    return _build(values, f"profile {names}")


def _read_profile(name: str) -> dict[str, object]:
    if name.endswith((".yaml", ".yml")):
        path, text = name, _read(Path(name))
    else:
        if name not in profile_names():
            raise ProfileError(
                f"profile {name!r} does not exist; choose {', '.join(profile_names())} or a path "
                "to a .yaml file."
            )
        path = f"profile {name}"
        text = (resources.files("edgechat.profiles") / f"{name}.yaml").read_text(encoding="utf-8")
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = str(error).replace("\n", " ")
        raise ProfileError(f"{path} is not valid YAML ({reason}).") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise ProfileError(f"{path} holds a value that cannot be read ({error}).") from None
    _build(values, path)  # so that an error names this file
    assert isinstance(values, dict)
    return values


def _build(values: object, path: str) -> Settings:
    try:
        return build(Settings, values)
    except (Invalid, SettingsError) as error:
        raise ProfileError(f"{path} is not valid: {error}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise ProfileError(f"{path} holds a value that cannot be read ({error}).") from None


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except SettingsError as error:
        raise ProfileError(str(error)) from None
