"""``edgechat doctor``: what this machine has, what a bundle needs, what would happen."""

from edgechat.doctor.examine import Report, examine

__all__ = ["Report", "examine"]
