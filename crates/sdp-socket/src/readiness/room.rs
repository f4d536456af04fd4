//! Whether a sender that got EAGAIN for lack of room may go on: in the ring of its lane on one host,
//! or by the queue pair.

use crate::{conn::Conn, datapath::wait, hosts};

/// Whether a send would get something away, or tell what ended. Never waits.
pub(crate) fn sender_may_go_on(conn: &Conn) -> bool {
    if hosts::is_guarded(conn) { hosts::may_send(conn) } else { wait::sender_may_go_on(conn) }
}

/// As [`sender_may_go_on`]; the peer is asked to ring when not. One on another host tells of room
/// in any case.
pub(crate) fn sender_may_go_on_or_arm(conn: &Conn) -> bool {
    if hosts::is_guarded(conn) {
        return hosts::may_send(conn);
    }
    wait::sender_may_go_on_or_arm(conn)
}
