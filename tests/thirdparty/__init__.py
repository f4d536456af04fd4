"""Test suites of other projects: see test_thirdparty.py."""
