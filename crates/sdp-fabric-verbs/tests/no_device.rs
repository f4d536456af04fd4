//! A host without RDMA: reported at once, with nothing opened.

use sdp_fabric_verbs::{
    Address, Error,
    fabric::{Options, VerbsFabric},
};

#[test]
fn a_host_without_a_device_is_told_cheaply() {
    if std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        println!("skipped: this host has a connection manager");
        return;
    }
    let open = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let before = open();
    for _ in 0..100 {
        let opened = VerbsFabric::open(&Address::v4([127, 0, 0, 1], 0), &Options::default());
        assert_eq!(opened.map(|_| ()), Err(Error::NoDevice));
    }
    assert_eq!(open(), before);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    assert!(!maps.contains("libibverbs"), "the library was loaded");
}
