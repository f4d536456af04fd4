//! The worked examples of spec 2.10, byte for byte, in both directions.

use sdp_proto::{
    Mode,
    wire::{
        Body, Flags, HEADER_LEN, Header, Hello, HelloAck, Lane, LaneRequest, LaneSwitch, Message,
        ModeChange, Ring, SinkAvail, SrcAvail,
        hello::{Address, HELLO_ACK_LEN, HELLO_LEN, HELLO_SHORT_LEN, Names},
    },
};
use sdp_rdma::key::{RemoteSlice, Rkey};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn message(body: Body, flags: Flags, payload: u32, mseq: u32, mseq_ack: u32) -> Message {
    let len = body.header_len() + payload;
    Message { header: Header { mid: body.mid(), flags, bufs: 64, len, mseq, mseq_ack }, body }
}

/// Both directions, and the payload behind the headers untouched.
fn check(expected: &str, message: Message) {
    let bytes = hex(expected);
    let encoded = message.encode();
    let headers = encoded.as_slice();
    assert_eq!(headers, &bytes[..headers.len()], "{message}");
    assert_eq!(bytes.len() as u32, message.header.len, "{message}");
    assert_eq!(headers.len() as u32 + message.payload_len(), message.header.len);
    assert_eq!(Message::parse(&bytes, bytes.len() as u32), Ok(message));
    // A prefix with the headers alone says the same.
    assert_eq!(Message::parse(headers, bytes.len() as u32), Ok(message));
}

fn slice(addr: u64, len: u32, rkey: u32) -> RemoteSlice {
    RemoteSlice { addr, len, rkey: Rkey(rkey) }
}

#[test]
fn data() {
    check(
        "ff000040 00000015 00000001 00000000 68656c6c6f",
        message(Body::Data, Flags::NONE, 5, 1, 0),
    );
    check("ff000040 00000010 00000001 00000001", message(Body::Data, Flags::NONE, 0, 1, 1));
    check(
        "ff030040 00000014 00000009 00000007 61626321",
        message(Body::Data, Flags::OOB_PRES.with(Flags::OOB_PEND), 4, 9, 7),
    );
}

#[test]
fn advertisements() {
    check(
        "fe000040 00000021 00000002 00000001 00020000 12345678 00007f1234560040 5a",
        message(
            Body::SrcAvail(SrcAvail { buffer: slice(0x7f12_3456_0040, 131_072, 0x1234_5678) }),
            Flags::NONE,
            1,
            2,
            1,
        ),
    );
    check(
        "fd000040 00000024 00000003 00000003 00040000 0a0b0c0d 00007f00cafe0000 00000002",
        message(
            Body::SinkAvail(SinkAvail {
                buffer: slice(0x7f00_cafe_0000, 262_144, 0x0a0b_0c0d),
                non_discards: 2,
            }),
            Flags::NONE,
            0,
            3,
            3,
        ),
    );
}

#[test]
fn control() {
    let control = |body, flags, mseq, ack| message(body, flags, 0, mseq, ack);
    let none = Flags::NONE;
    check(
        "06040040 00000014 00000002 00000002 0001ffff",
        control(Body::RdmaRdCompl { bytes: 131_071 }, Flags::REQ_PIPE, 2, 2),
    );
    check(
        "07000040 00000014 00000003 00000002 20000000",
        control(
            Body::ModeChange(ModeChange { for_source: false, mode: Mode::Pipelined }),
            none,
            3,
            2,
        ),
    );
    check(
        "05000040 00000014 00000004 00000003 00030d40",
        control(Body::RdmaWrCompl { bytes: 200_000 }, none, 4, 3),
    );
    check("08000040 00000010 00000005 00000003", control(Body::SrcAvailCancel, none, 5, 3));
    check("04000040 00000010 00000004 00000005", control(Body::SendSm, none, 4, 5));
    check("09000040 00000010 00000005 00000005", control(Body::SinkAvailCancel, none, 5, 5));
    check("0a000040 00000010 00000006 00000005", control(Body::SinkCancelAck, none, 6, 5));
    check(
        "0b000040 00000014 00000007 00000005 00010000",
        control(Body::ChRcvBuf { size: 65_536 }, none, 7, 5),
    );
    check(
        "0c000040 00000014 00000006 00000007 00008010",
        control(Body::ChRcvBufAck { size: 32_784 }, none, 6, 7),
    );
    check(
        "0d000040 00000018 00000008 00000006 0000000000011389",
        control(Body::SuspComm { service: 0x1_1389 }, none, 8, 6),
    );
    check("0e000040 00000010 00000007 00000008", control(Body::SuspCommAck, none, 7, 8));
    check("02000040 00000010 0000000a 00000007", control(Body::DisConn, none, 10, 7));
    check("03000040 00000010 0000000b 00000007", control(Body::AbortConn, none, 11, 7));
}

#[test]
fn lane_messages() {
    check(
        "40000040 00000028 00000002 00000001 01000000 00000001 0000000000010000 0000000000012345",
        message(
            Body::LaneSwitch(LaneSwitch {
                lane: Lane::Sdp,
                sequence: 1,
                carrier_position: 65_536,
                stream_position: 0x1_2345,
            }),
            Flags::NONE,
            0,
            2,
            1,
        ),
    );
    check(
        "41000040 00000018 00000003 00000001 00000000 00000007",
        message(
            Body::LaneRequest(LaneRequest { lane: Lane::Carrier, sequence: 7 }),
            Flags::NONE,
            0,
            3,
            1,
        ),
    );
    check(
        "43000040 00000018 00000003 00000001 00000000 0000000a",
        message(Body::Withdrawn { position: 10 }, Flags::NONE, 0, 3, 1),
    );
}

fn hello(names: Option<Names>) -> Hello {
    Hello {
        bufs: 64,
        version: 0x22,
        max_adverts: 1,
        capabilities: 0,
        desired_receive_size: 32_784,
        receive_size: 32_784,
        names,
        ring: None,
    }
}

#[test]
fn hello_with_ipv4_names() {
    let hello = hello(Some(Names {
        source: Address::V4([192, 168, 10, 1]),
        port: 40_000,
        destination: Address::V4([192, 168, 10, 2]),
    }));
    let mut expected =
        hex("00000040 0000005c 00000000 00000000 22400001 00008010 00008010 9c400000
         00000000 00000000 00000000 c0a80a01 00000000 00000000 00000000 c0a80a02");
    expected.resize(HELLO_LEN, 0);
    assert_eq!(hello.encode().as_slice(), expected);
    assert_eq!(Hello::parse(&expected), Ok(hello));
    assert_eq!(
        hello.to_string(),
        "Hello 2.2 bufs=64 size=32784 wants=32784 adverts=1 from=192.168.10.1 port=40000 \
         to=192.168.10.2"
    );
}

#[test]
fn hello_with_ipv6_names() {
    let v6 = |last| Address::V6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let hello = hello(Some(Names { source: v6(0xa), port: 40_000, destination: v6(0xb) }));
    let mut expected =
        hex("00000040 0000005c 00000000 00000000 22600001 00008010 00008010 9c400000
         fd000000 00000000 00000000 0000000a fd000000 00000000 00000000 0000000b");
    expected.resize(HELLO_LEN, 0);
    assert_eq!(hello.encode().as_slice(), expected);
    assert_eq!(Hello::parse(&expected), Ok(hello));
}

#[test]
fn hello_without_names() {
    let hello = hello(None);
    let expected = hex("00000040 00000020 00000000 00000000 22400001 00008010 00008010 00000000");
    assert_eq!(expected.len(), HELLO_SHORT_LEN);
    assert_eq!(hello.encode().as_slice(), expected);
    assert_eq!(Hello::parse(&expected), Ok(hello));
    // A connection manager pads the private data with zeros.
    let mut padded = expected;
    padded.resize(56, 0);
    assert_eq!(Hello::parse(&padded), Ok(hello));
}

#[test]
fn hello_ack() {
    let ack = HelloAck {
        bufs: 64,
        version: 0x22,
        max_adverts: 1,
        capabilities: 0,
        receive_size: 32_784,
        ring: None,
    };
    let mut expected = hex("01000040 000000c4 00000000 00000000 22000001 00008010");
    expected.resize(HELLO_ACK_LEN, 0);
    assert_eq!(ack.encode().as_slice(), expected);
    assert_eq!(HelloAck::parse(&expected), Ok(ack));
    assert_eq!(ack.to_string(), "HelloAck 2.2 bufs=64 size=32784 adverts=1");
}

#[test]
fn one_line_of_text() {
    let advert = message(
        Body::SrcAvail(SrcAvail { buffer: slice(0x1000, 131_072, 0xabc) }),
        Flags::NONE,
        1,
        2,
        1,
    );
    assert_eq!(
        advert.to_string(),
        "SrcAvail mseq=2 ack=1 bufs=64 len=33 buffer=0x1000+131072 rkey=0x00000abc payload=1"
    );
    let urgent = message(Body::Data, Flags::OOB_PRES.with(Flags::OOB_PEND), 4, 9, 7);
    assert_eq!(urgent.to_string(), "Data mseq=9 ack=7 bufs=64 len=20 oob-pres+oob-pend payload=4");
}

#[test]
fn base_header_alone() {
    let bytes = hex("ff000040 00000015 00000001 00000000");
    let header = Header::parse(&bytes, 21).unwrap();
    assert_eq!(header.encode().as_slice(), &bytes[..HEADER_LEN]);
    assert_eq!(header.credit().bufs, 64);
}

#[test]
fn a_ring_in_both_set_up_messages() {
    let ring = Some(Ring { log2: 18, key: 0x0102_0304 });
    let hello = Hello { ring, ..hello(None) };
    let expected = hex("00000040 00000020 00000000 00000000 22401201 00008010 00008010 01020304");
    assert_eq!(hello.encode().as_slice(), expected);
    assert_eq!(Hello::parse(&expected), Ok(hello));
    let ack = HelloAck {
        bufs: 64,
        version: 0x22,
        max_adverts: 1,
        capabilities: 0,
        receive_size: 32_784,
        ring,
    };
    let mut expected = hex("01000040 000000c4 00000000 00000000 22001201 00008010");
    expected.resize(52, 0);
    expected.extend([1, 2, 3, 4]);
    expected.resize(HELLO_ACK_LEN, 0);
    assert_eq!(ack.encode().as_slice(), expected);
    assert_eq!(HelloAck::parse(&expected), Ok(ack));
    // Lengths that there are not.
    for log2 in [1, 11, 23, 255] {
        expected[18] = log2;
        assert!(HelloAck::parse(&expected).is_err(), "2^{log2}");
    }
}
