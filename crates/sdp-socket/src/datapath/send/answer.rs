//! Messages without payload on the SDP lane: the answers that the peer's messages ask for (SendSm to
//! an advertisement, ChRcvBufAck), and the end of the stream.
//!
//! An answer is sent at once by the call that took the peer's message, once it holds no lock;
//! where that cannot be, by the next call that receives or sends on the lane.

use sdp_proto::{Ack, Exchange, Outgoing};
use sdp_rdma::fabric::{Gather, PostError, SendOptions, SendQueue};
use sdp_sys::errno::Errno;

use super::{
    Conn, ConnGuard, Direction, Lane, Limits, Ordering, RingSend, Row, ShmHalf, SourceState,
    WorkId, enter_sdp, gated, may_enter, publish, reason_to_leave, reset, wait, wake_sleepers,
    with_source,
};
use crate::datapath::exchange::RowExchange;

/// Most answers of one call. More than can be pending at a time.
const MOST: u32 = 8;

struct NoPayload;

impl Gather for NoPayload {
    fn len(&self) -> usize {
        0
    }
    fn copy_to(&mut self, _: usize, _: &[core::cell::Cell<u8>]) {}
}

/// Posts and publishes a message without payload, which may use the room that payload leaves. The
/// gate is held.
pub(crate) fn post_control(
    conn: &Conn,
    source: &mut SourceState,
    message: &Outgoing,
) -> Result<(), PostError> {
    let options = SendOptions { control: true, ..SendOptions::default() };
    let mut posted = source.tx.post_send(WorkId(0), message.header(), &mut NoPayload, options);
    if posted == Err(PostError::Full) {
        source.tx.refresh().map_err(PostError::Failed)?;
        posted = source.tx.post_send(WorkId(0), message.header(), &mut NoPayload, options);
    }
    posted?;
    source.engine.commit(message);
    source.tx.publish();
    publish::message(conn, true, &message.message().header);
    Ok(())
}

/// Posts the answers that are pending, on the SDP lane; `first`: nothing was posted since the half
/// entered it. Under the half's lock.
#[cold]
pub(super) fn flush(
    conn: &ConnGuard,
    source: &mut SourceState,
    row: &Row,
    half: ShmHalf<'_>,
    first: &mut bool,
) -> Result<(), RingSend> {
    let exchange: &dyn Exchange = &RowExchange(row);
    for _ in 0..MOST {
        let ack = Ack::from_word(row.ack.load(Ordering::Acquire));
        // Nothing is left, or nothing may follow.
        let Ok(message) = source.engine.next_control(ack, exchange.pending()) else { break };
        let posted = gated(conn, half, conn.side(), || {
            if source.adopt(half).map_err(|_| RingSend::Broken)? {
                return Err(RingSend::Left);
            }
            let mut posted = Ok(());
            exchange.settle(&message, &mut || {
                posted = post_control(conn, source, &message);
                posted.is_ok()
            });
            posted.map_err(|error| match error {
                PostError::Full => RingSend::Full,
                _ => RingSend::Broken,
            })
        });
        posted.unwrap_or(Err(RingSend::Broken))?;
        // A next owner looks for one message that was not written down, not for more.
        source.store(&row.source.words);
        wake_sleepers(conn, conn.fd(), source, half, *first);
        *first = false;
    }
    Ok(())
}

/// Sends the answers that are pending, after a call has taken messages of the peer; no lock is
/// held. A half on the kernel lane enters the SDP lane for it if L1 allows, whatever it has earned.
/// Otherwise they are sent when it does.
#[cold]
pub(crate) fn answer(conn: &ConnGuard) {
    if conn.has(Limits::Hostile) {
        return;
    }
    let _ = with_source(conn, |source, row, link, half| {
        let mut first = false;
        if source.lane == Lane::Kernel {
            if conn.has(Limits::Shut)
                || !may_enter(conn, source, link, half)
                || enter_sdp(conn, source, half).is_none()
            {
                return Ok(());
            }
            first = true;
        }
        let mut flushed = flush(conn, source, row, half, &mut first);
        // The consumer signals when it has freed room; a thread that it wakes comes here again.
        if matches!(flushed, Err(RingSend::Full)) && wait::arm_for_room(half) {
            flushed = flush(conn, source, row, half, &mut first);
        }
        match flushed {
            Ok(()) | Err(RingSend::Full | RingSend::Done) => Ok(()),
            Err(RingSend::Left) => {
                publish::half_demoted(conn, Direction::Send, reason_to_leave(conn, 0));
                Ok(())
            }
            Err(RingSend::Broken) => {
                reset(conn);
                Err(Errno::ECONNRESET)
            }
        }
    });
}
