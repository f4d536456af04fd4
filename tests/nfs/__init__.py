"""NFS over RDMA in a guest."""
