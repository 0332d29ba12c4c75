"""Profiles: one YAML file for each use or device; the keys are edgechat.settings.Settings."""
