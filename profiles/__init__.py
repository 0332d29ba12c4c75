"""Profiles: one YAML file for each use; the keys are edgechat.settings.Settings."""
