//! End-to-end tests: the real `holdfast` on the real kernel, as a user without privileges.
//!
//! Each case runs in a process of its own with a node of its own, under a deadline, and ends with the zero-leak
//! check. Run as root, a case becomes the user that `HOLDFAST_TEST_USER` names (default `holdfast`) before it
//! touches the node. Arguments without a dash select cases by a part of their name; `--list` lists them.
//! Nothing is built here: the binaries are those beside this one, or those that `HOLDFAST_BIN` and
//! `HOLDFAST_CHAOS_BIN` name.

mod api;
mod concurrency;
mod containers;
mod dns;
mod drift;
mod http;
mod images;
mod interlink;
mod networks;
mod node;
mod peer;
mod plugs;
mod pods;
mod policies;
mod ports;
mod recovery;
mod restarts;
mod shared;
mod store;
mod support;

use holdfast_chaos::privileged::Preparation;
use holdfast_tests::runner::{self, Case, case};
use std::process::ExitCode;

const CASES: &[Case] = &[
    case("up_is_idempotent_and_a_second_daemon_is_told_so", node::up_is_idempotent),
    case("status_tells_the_truth_of_each_process", node::status_tells_the_truth),
    case("a_killed_daemon_is_started_by_the_next_command", node::killed_daemon),
    case("an_upgrade_replaces_the_control_and_touches_no_workload", node::upgrade),
    case("down_takes_everything_and_up_brings_it_back", node::down_and_up),
    case("down_keep_workloads_then_up_adopts", node::down_keeping_workloads),
    case("doctor_gives_each_finding_its_remedy", node::doctor),
    case("run_gives_back_output_and_exit_code", containers::run_gives_back_output_and_exit_code),
    case("run_rm_goes_with_its_end", containers::run_rm_goes_with_its_end),
    case("run_options_are_exact", containers::run_options_are_exact),
    case("arguments_arrive_exactly", containers::arguments_arrive_exactly),
    case("a_container_lives_its_life", containers::lifecycle),
    case("exec_gives_back_streams_and_codes", containers::exec_gives_back_streams_and_codes),
    case("logs_are_whole", containers::logs_are_whole),
    case("stop_asks_then_kills", containers::stop_asks_then_kills),
    case("restart_on_failure_counts", restarts::on_failure_counts),
    case("restart_always_backs_off", restarts::always_backs_off),
    case("an_abrupt_kill_is_an_end_like_another", restarts::abrupt_kill),
    case("images_are_loaded_listed_and_removed", images::load_list_remove),
    case("a_directory_is_a_root_that_is_never_written", images::rootfs_directory),
    case("pod_members_share_net_ipc_and_uts", pods::members_share),
    case("only_the_pod_ends_its_namespaces", pods::only_the_pod_ends_its_namespaces),
    case("networks_are_created_listed_and_removed", networks::create_list_remove),
    case("addresses_stay_over_every_restart", networks::addresses_stay),
    case("tenants_and_networks_are_isolated", networks::isolation),
    case("outbound_is_masqueraded_and_host_loopback_closed", networks::outbound),
    case("networks_come_and_go_under_a_running_workload", plugs::connect_and_disconnect),
    case("old_flows_are_no_new_owners", plugs::old_flows_are_forgotten),
    case("routed_networks_reach_one_another_tenant_by_tenant", plugs::routed_networks),
    case("published_ports_from_inside_and_as_they_are", plugs::published_from_inside),
    case("policies_open_and_close_what_they_name", policies::rules_by_packets),
    case("a_network_policy_document_is_what_it_is_in_kubernetes", policies::document_by_packets),
    case("names_are_told_to_whoever_reaches_them", dns::names),
    case("names_outside_are_asked_of_whom_the_host_asks", dns::outside),
    case("no_query_is_lost_while_containers_start", dns::no_query_lost),
    case("names_are_answered_without_the_daemon", dns::daemon_and_control_away),
    case("a_published_port_answers_at_once_and_over_restarts", ports::answers_at_once),
    case("a_taken_port_is_refused_and_leaves_nothing", ports::taken_is_refused),
    case("bring_up_with_nothing_to_do", recovery::nothing),
    case("bring_up_starts_the_control", recovery::control),
    case("bring_up_adopts", recovery::adopt),
    case("bring_up_replugs", recovery::replug),
    case("bring_up_rebuilds", recovery::rebuild),
    case("changes_of_the_router_by_others_are_put_right", drift::changes_by_others_are_put_right),
    case("the_socket_is_this_users_alone", api::socket_is_private),
    case("bad_requests_get_a_problem", api::bad_requests),
    case("corrupt_and_newer_records_are_reported", store::corrupt_and_newer_records),
    case("a_damaged_database_is_moved_aside", store::damaged_database),
    case("a_full_disk_refuses_creates_only", store::full_disk).prepared(Preparation::SmallDisk(24 << 20)),
    case("one_name_is_given_once", concurrency::one_name_is_given_once),
    case("twenty_runs_at_once_get_twenty_addresses", concurrency::twenty_runs),
    case("operations_on_one_object_take_turns", concurrency::one_object),
    case("execs_leave_no_zombie", concurrency::execs_leave_no_zombie),
    case("the_pin_holds_nothing_and_ignores_a_sessions_signals", shared::pin_idle),
    case("each_keeper_alone_keeps_the_router", shared::all_keepers_but_one),
    case("silent_clients_wedge_nothing", shared::control_wedge),
    case("strangers_at_the_nodes_paths_are_moved_aside", shared::stale_files),
    case("a_container_outlives_its_monitor", shared::conmon_kill),
    case("interlink_pods_are_what_they_ask_for", interlink::conformance),
    case("interlink_names_what_it_cannot_do", interlink::refused),
    case("interlink_host_ports_carry_tcp_and_udp", interlink::host_ports),
    case("interlink_plugin_restart_moves_no_container", interlink::plugin_restart),
    case("interlink_create_then_daemon_kill", interlink::create_then_kill),
    case("interlink_delete_before_create", interlink::delete_first),
    case("interlink_image_missing", interlink::image_missing),
    case("interlink_logs_with_every_option", interlink::logs),
    case("another_boot_is_recovered_from", shared::reboot).prepared(Preparation::BootId),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--fetch", address, deadline_ms] => peer::fetch(address, deadline_ms),
        ["--ask", address, deadline_ms] => peer::ask(address, deadline_ms),
        ["--ping", address, deadline_ms] => peer::ping(address, deadline_ms),
        ["--echo", address] => peer::echo(address),
        ["--connect", socket] => peer::connect(socket),
        _ => return runner::main(CASES),
    };
    result.unwrap_or_else(runner::failed)
}
