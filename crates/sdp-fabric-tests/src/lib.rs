//! Conformance suite for fabrics.
//!
//! The contract of [`sdp_rdma::fabric`] as tests that know no fabric. A fabric's own test file
//! writes a [`Harness`] (how to make a connected pair, how time passes, which features are missing)
//! and one line for each variant:
//!
//! ```text
//! sdp_fabric_tests::conformance!(explicit_credits, ExplicitHarness, skipped = 0);
//! ```
//!
//! That line becomes one `#[test]` for each rule, and one that counts the skipped tests. A test is
//! skipped only where the harness names a reason for a missing [`Feature`], the reason is printed,
//! and the number of skipped tests is part of the line: a fabric cannot lose a capability
//! unnoticed.
//!
//! Random choices come from a seed, printed with each failure. `SDP_CONFORMANCE_SEED=n cargo test …`
//! repeats it; the default is fixed, so that two runs of one build do the same.
//!
//! Nothing here sleeps or measures time: tests wait for a condition, with a bound on the steps.

#![forbid(unsafe_code)]

pub mod harness;
pub mod message;
pub mod runner;

/// The tests, by part of the contract.
pub mod suite {
    pub mod borrow;
    pub mod error;
    pub mod one_sided;
    pub mod order;
    pub mod pressure;
    pub mod set_up;
    pub mod story;
    pub mod threads;
}

pub use harness::{End, Fabrics, Feature, Harness, NoFabric, Pair, Side};

/// Calls a macro with the table of all tests: `part::test needs [features],`.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_test {
    ([$($callback:tt)*], $($arguments:tt)*) => {
        $($callback)*! {
            $($arguments)*;
            order::messages_arrive_in_order_once_and_unchanged needs [],
            order::sizes_at_the_edges_arrive_whole needs [],
            order::directions_do_not_wait_for_each_other needs [],
            order::completions_come_once_and_in_order needs [],
            order::connections_do_not_mix needs [],
            pressure::full_ends_when_messages_are_released needs [],
            pressure::nothing_is_half_sent needs [],
            pressure::control_may_use_the_reserve needs [],
            pressure::too_long_is_refused_and_posts_nothing needs [],
            pressure::room_is_what_can_be_sent needs [],
            pressure::completions_not_polled_are_not_lost needs [],
            pressure::posted_buffers_follow_reports_and_releases needs [],
            borrow::a_borrowed_message_outlives_its_successors needs [],
            borrow::messages_may_be_released_in_any_order needs [],
            borrow::room_returns_as_the_credits_say needs [],
            borrow::a_kept_message_does_not_stop_the_others needs [ExplicitCredits],
            borrow::parts_can_be_copied_from_any_offset needs [],
            borrow::header_copy_stops_at_the_end_of_the_message needs [],
            error::bytes_sent_before_a_disconnect_stay_readable needs [Disconnect],
            error::a_borrowed_message_outlives_the_connection needs [Disconnect],
            error::an_ended_queue_pair_accepts_no_work needs [Disconnect],
            error::requests_under_way_are_flushed needs [Disconnect],
            error::a_dead_peer_ends_the_connection needs [PeerDeath],
            one_sided::write_lands_before_the_send_behind_it needs [OneSided],
            one_sided::read_fetches_what_was_there_before_the_send_behind_it needs [OneSided],
            one_sided::ranges_at_the_edges_of_a_region needs [OneSided],
            one_sided::no_receive_buffer_is_needed needs [OneSided],
            one_sided::completions_mix_in_order_with_sends needs [OneSided],
            one_sided::bad_remote_ranges_fail_and_touch_nothing needs [OneSided, RemoteKeys],
            one_sided::bad_remote_keys_fail_and_touch_nothing needs [OneSided, RemoteKeys],
            one_sided::missing_rights_fail_and_touch_nothing needs [OneSided, RemoteKeys],
            one_sided::deregistered_regions_fail_and_are_not_touched needs [OneSided, RemoteKeys],
            one_sided::bad_local_keys_and_ranges_fail needs [OneSided, LocalKeys],
            one_sided::one_sided_work_is_refused_where_unsupported needs [NoOneSided],
            set_up::private_data_of_every_size_arrives needs [SetUp],
            set_up::too_long_private_data_is_refused needs [SetUp],
            set_up::a_refusal_carries_its_code needs [SetUp],
            set_up::nobody_listening_is_a_refusal needs [SetUp],
            set_up::a_service_has_one_listener needs [SetUp],
            set_up::queues_are_taken_once_and_not_early needs [SetUp],
            set_up::backlog_is_bounded_and_recovers needs [SetUp],
            set_up::a_request_is_answered_once needs [SetUp],
            set_up::a_withdrawn_request_comes_to_nothing needs [SetUp],
            set_up::only_the_other_side_hears_of_a_disconnect needs [SetUp],
            threads::halves_work_from_two_threads needs [],
            story::random_stories_match_the_model needs [],
        }
    };
}

/// Instantiates every test for a [`Harness`]: `conformance!(module_name, HarnessType, skipped = 0)`.
///
/// `skipped` is how many tests the harness's missing features exclude.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $harness:ty, skipped = $skipped:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::for_each_test!([$crate::conformance_tests], $harness);

            #[test]
            fn skipped_tests_are_those_declared() {
                $crate::runner::account::<$harness>($skipped);
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty; $($part:ident :: $test:ident needs [$($feature:ident),*],)*) => {
        $(
            #[test]
            fn $test() {
                $crate::runner::run::<$harness>(&$crate::runner::Test {
                    name: concat!(stringify!($part), "::", stringify!($test)),
                    needs: &[$($crate::Feature::$feature),*],
                    run: $crate::suite::$part::$test,
                });
            }
        )*
    };
}
