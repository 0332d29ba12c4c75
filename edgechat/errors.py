"""The errors a user can meet. Each message names the cause and the remedy in one sentence."""


class EdgechatError(Exception):
    """Base of every error edgechat raises on purpose."""


class SourceError(EdgechatError):
    """A model source (folder, GGUF file, hub id) is missing, damaged or incomplete."""


class UnsupportedModelError(EdgechatError):
    """The model asks for something edgechat does not implement; the message names it."""


class BundleError(EdgechatError):
    """A bundle is missing, damaged, edited or made by another schema."""


class EngineError(EdgechatError):
    """The engine cannot run the bundle on this machine."""


class CapacityError(EdgechatError):
    """What should be fed does not fit the KV cache and the policy may not evict."""


class DeviceError(EdgechatError):
    """A bundle does not fit the device it was planned for; the message says what would."""


class TemplateError(EdgechatError):
    """The chat template is broken or refused the messages."""


class ProfileError(EdgechatError):
    """A profile does not exist or holds an unknown key or value."""


class SettingsError(EdgechatError):
    """An option has a value that makes no sense."""


class ArchiveError(EdgechatError):
    """The archive's file cannot be written or read."""


class SessionError(EdgechatError):
    """A session file is missing, damaged or belongs to another bundle."""
