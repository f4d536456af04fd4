"""Packages, made and used."""
