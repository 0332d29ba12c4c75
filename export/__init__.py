"""Workstation side: turns a model source into a bundle. Needs the ``export`` extra."""

from edgechat.export.dry_run import Forecast, dry_run
from edgechat.export.export import Progress, export_model
from edgechat.export.optimum import export_with_optimum
from edgechat.export.sources import open_source
from edgechat.export.targets import TARGETS, check_options

__all__ = [
    "TARGETS",
    "Forecast",
    "Progress",
    "check_options",
    "dry_run",
    "export_model",
    "export_with_optimum",
    "open_source",
]
