"""Recipes that change weights or their precision before a dialect spells them."""
