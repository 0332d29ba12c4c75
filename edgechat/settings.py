"""Profiles (YAML) and how they, the caller and the bundle together settle a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import yaml

from edgechat.errors import ProfileError, SettingsError
from edgechat.paths import read_text
from edgechat.runtime.sampling import SamplingSettings
from edgechat.validate import Invalid, build

DEFAULT_PROFILE = "chat"


@dataclass(frozen=True)
class Settings:
    """A profile's content.

    ``cache_window``: recent tokens kept; ``sinks``: first tokens always kept; ``policy``: window
    (bounded for ever) or full (stops at the bundle's capacity); ``threads``: None uses the cores
    this process may run on; ``max_tokens``: longest reply.
    """

    description: str = ""
    policy: str = "window"
    cache_window: int = 1536
    sinks: int = 4
    threads: int | None = None
    max_tokens: int = 512
    sampling: SamplingSettings = field(default_factory=SamplingSettings)

    def __post_init__(self) -> None:
        if self.cache_window < 16:
            raise SettingsError(f"the window must be at least 16 tokens, not {self.cache_window}.")
        if self.sinks < 0:
            raise SettingsError(f"sinks must be 0 or more, not {self.sinks}.")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise SettingsError(f"threads must be between 1 and 1024, not {self.threads}.")
        if self.max_tokens < 0:
            raise SettingsError(f"max tokens must be 0 or more, not {self.max_tokens}.")

    def override(self, **values: object) -> Settings:
        """A copy with the values that are not None replaced; sampling fields go inside."""
        given = {k: v for k, v in values.items() if v is not None}
        inner = {f.name for f in dataclasses.fields(SamplingSettings)} & given.keys()
        base = given.pop("sampling", self.sampling)
        sampling = dataclasses.replace(base, **{k: given.pop(k) for k in inner})  # type: ignore[type-var]
        return dataclasses.replace(self, sampling=sampling, **given)  # type: ignore[arg-type]

    def capacity(self, most: int, window_asked: bool) -> int:
        """Slots of the KV cache for a bundle that allows ``most``.

        A profile's window shrinks to fit; one the user asked for is refused when it does not.
        """
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


def load_profile(name: str) -> Settings:
    """The profile ``name``, or a ``.yaml`` file's; ProfileError for unknown names and keys."""
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
        return build(Settings, yaml.safe_load(text))
    except (Invalid, SettingsError) as error:
        raise ProfileError(f"{path} is not valid: {error}") from None
    except yaml.YAMLError as error:
        reason = str(error).replace("\n", " ")
        raise ProfileError(f"{path} is not valid YAML ({reason}).") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise ProfileError(f"{path} holds a value that cannot be read ({error}).") from None


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except SettingsError as error:
        raise ProfileError(str(error)) from None
