"""Tests that need machines of their own: guests with an RDMA device in software, joined by a wire."""
