//! The hand-written layouts beside the installed headers, where these are.

use std::{
    collections::BTreeMap,
    mem::{offset_of, size_of},
    path::Path,
    process::Command,
};

use sdp_fabric_verbs::abi::{cm, verbs};

/// Headers that describe the structures compared.
const HEADERS: [&str; 2] = ["/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_user_cm.h"];

macro_rules! facts {
    ($($kind:ty = $c:literal { $($field:ident = $cfield:literal),* };)*) => {{
        let mut facts: Vec<(String, usize)> = Vec::new();
        $(
            facts.push((format!("sizeof(struct {})", $c), size_of::<$kind>()));
            $(facts.push((
                format!("offsetof(struct {}, {})", $c, $cfield),
                offset_of!($kind, $field),
            ));)*
        )*
        facts
    }};
}

/// Structures that begin as the library's do and end earlier: only offsets count.
fn beginnings() -> Vec<(String, usize)> {
    let offset = |kind: &str, field: &str, at| (format!("offsetof(struct {kind}, {field})"), at);
    let ops = offset_of!(verbs::Context, ops);
    vec![
        offset("ibv_context", "ops.poll_cq", ops + offset_of!(verbs::ContextOps, poll_cq)),
        offset(
            "ibv_context",
            "ops.req_notify_cq",
            ops + offset_of!(verbs::ContextOps, req_notify_cq),
        ),
        offset(
            "ibv_context",
            "ops.post_srq_recv",
            ops + offset_of!(verbs::ContextOps, post_srq_recv),
        ),
        offset("ibv_context", "ops.post_send", ops + offset_of!(verbs::ContextOps, post_send)),
        offset("ibv_context", "ops.post_recv", ops + offset_of!(verbs::ContextOps, post_recv)),
        offset("ibv_cq", "context", offset_of!(verbs::Cq, context)),
        offset("ibv_cq", "cqe", offset_of!(verbs::Cq, cqe)),
        offset("ibv_srq", "context", offset_of!(verbs::Srq, context)),
        offset("ibv_qp", "context", offset_of!(verbs::Qp, context)),
        offset("ibv_qp", "qp_num", offset_of!(verbs::Qp, qp_num)),
        offset("ibv_ah_attr", "grh.sgid_index", offset_of!(verbs::AhAttr, sgid_index)),
        offset("ibv_send_wr", "wr.rdma.rkey", offset_of!(verbs::SendWr, rkey)),
        offset("ibv_srq_init_attr", "attr.max_wr", offset_of!(verbs::SrqInitAttr, max_wr)),
        offset("rdma_ucm_query_addr_resp", "dst_addr", offset_of!(cm::QueryAddr, dst)),
        offset("ib_uverbs_ah_attr", "dlid", offset_of!(cm::AhAttr, dlid)),
    ]
}

fn ours() -> Vec<(String, usize)> {
    let mut facts = facts! {
        verbs::Device = "ibv_device" { node_type = "node_type", transport_type = "transport_type", name = "name" };
        verbs::Context = "ibv_context" { ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd", num_comp_vectors = "num_comp_vectors" };
        verbs::Pd = "ibv_pd" {};
        verbs::Mr = "ibv_mr" { lkey = "lkey", rkey = "rkey" };
        verbs::CompChannel = "ibv_comp_channel" { fd = "fd" };
        verbs::Sge = "ibv_sge" { length = "length", lkey = "lkey" };
        verbs::SendWr = "ibv_send_wr" { sg_list = "sg_list", opcode = "opcode", send_flags = "send_flags", remote_addr = "wr" };
        verbs::RecvWr = "ibv_recv_wr" { sg_list = "sg_list", num_sge = "num_sge" };
        verbs::Wc = "ibv_wc" { status = "status", opcode = "opcode", byte_len = "byte_len", qp_num = "qp_num", wc_flags = "wc_flags" };
        verbs::QpCap = "ibv_qp_cap" {};
        verbs::QpInitAttr = "ibv_qp_init_attr" { srq = "srq", cap = "cap", qp_type = "qp_type", sq_sig_all = "sq_sig_all" };
        verbs::SrqInitAttr = "ibv_srq_init_attr" {};
        verbs::AhAttr = "ibv_ah_attr" { dlid = "dlid", port_num = "port_num" };
        verbs::QpAttr = "ibv_qp_attr" {
            path_mtu = "path_mtu", rq_psn = "rq_psn", dest_qp_num = "dest_qp_num", qp_access_flags = "qp_access_flags",
            ah_attr = "ah_attr", pkey_index = "pkey_index", max_rd_atomic = "max_rd_atomic",
            max_dest_rd_atomic = "max_dest_rd_atomic", min_rnr_timer = "min_rnr_timer", port_num = "port_num",
            timeout = "timeout", retry_cnt = "retry_cnt", rnr_retry = "rnr_retry"
        };
        cm::Header = "rdma_ucm_cmd_hdr" { len_in = "in", len_out = "out" };
        cm::CreateId = "rdma_ucm_create_id" { response = "response", ps = "ps", qp_type = "qp_type" };
        cm::DestroyId = "rdma_ucm_destroy_id" { id = "id" };
        cm::Bind = "rdma_ucm_bind" { addr_size = "addr_size", addr = "addr" };
        cm::ResolveAddr = "rdma_ucm_resolve_addr" { src_size = "src_size", src = "src_addr", dst = "dst_addr" };
        cm::ResolveRoute = "rdma_ucm_resolve_route" { timeout_ms = "timeout_ms" };
        cm::Query = "rdma_ucm_query" { id = "id", option = "option" };
        cm::ConnParam = "rdma_ucm_conn_param" { private_data = "private_data", private_data_len = "private_data_len", valid = "valid" };
        cm::Connect = "rdma_ucm_connect" { id = "id", ece = "ece" };
        cm::Listen = "rdma_ucm_listen" { backlog = "backlog" };
        cm::Accept = "rdma_ucm_accept" { param = "conn_param", id = "id" };
        cm::Reject = "rdma_ucm_reject" { private_data_len = "private_data_len", private_data = "private_data" };
        cm::Notify = "rdma_ucm_notify" { event = "event" };
        cm::Disconnect = "rdma_ucm_disconnect" {};
        cm::InitQpAttr = "rdma_ucm_init_qp_attr" { id = "id", qp_state = "qp_state" };
        cm::QpAttr = "ib_uverbs_qp_attr" { ah_attr = "ah_attr", pkey_index = "pkey_index", timeout = "timeout", rnr_retry = "rnr_retry" };
        cm::AhAttr = "ib_uverbs_ah_attr" { port_num = "port_num" };
        cm::GetEvent = "rdma_ucm_get_event" {};
        cm::EventResp = "rdma_ucm_event_resp" { id = "id", event = "event", status = "status", param = "param" };
    };
    facts.extend(beginnings());
    facts
}

#[test]
fn layouts_are_those_of_the_headers() {
    if let Some(missing) = HEADERS.iter().find(|header| !Path::new(header).exists()) {
        println!("skipped: {missing} is not installed");
        return;
    }
    let facts = ours();
    let lines: String = facts
        .iter()
        .map(|(what, _)| format!("printf(\"%zu %s\\n\", {what}, \"{what}\");\n"))
        .collect();
    let source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_user_cm.h>\n\
         int main(void) {{\n{lines}return 0;\n}}\n"
    );
    let stem = std::env::temp_dir().join(format!("sdp-layout-{}", std::process::id()));
    let (program, text) = (stem.with_extension("exe"), stem.with_extension("c"));
    std::fs::write(&text, source).expect("a source file");
    let built = Command::new("cc").args(["-w", "-o"]).args([&program, &text]).status();
    let _ = std::fs::remove_file(&text);
    if built.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        println!("skipped: no C compiler");
        return;
    }
    assert!(built.expect("a compiler").success(), "the headers do not know what is compared");
    let output = Command::new(&program).output().expect("a program");
    let _ = std::fs::remove_file(&program);
    let theirs: BTreeMap<_, _> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(number, what)| (what.to_owned(), number.parse::<usize>().expect("a number")))
        .collect();
    for (what, number) in &facts {
        assert_eq!(theirs.get(what), Some(number), "{what}: the headers', ours");
    }
    println!("{} sizes and offsets are equal", facts.len());
}
