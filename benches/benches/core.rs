//! Core on nodes of 10 to 10,000 workloads: planners, status, rules, records. No kernel, no clock.
//!
//! Aims: the pass that finds nothing to do is linear in the workloads, and takes under 1 ms at 1,000.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use holdfast_benches::fixture::{WALL, dead, records, request, stamp, whole};
use holdfast_core::{
    bring_up::plan_bring_up,
    invariant,
    ops::container,
    record::{Change, decode, encode},
    ruleset::Ruleset,
    status::status_of,
};
use std::{hint::black_box, time::Duration};

const SIZES: [u32; 4] = [10, 100, 1_000, 10_000];

fn passes(criterion: &mut Criterion) {
    for (name, observation) in [("plan_nothing", whole as fn(&_) -> _), ("plan_rebuild", dead)] {
        let mut group = criterion.benchmark_group(name);
        for size in SIZES {
            let records = records(size).unwrap();
            let observed = observation(&records);
            group.throughput(Throughput::Elements(size.into()));
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                bencher.iter(|| {
                    plan_bring_up(black_box(&observed), black_box(&records), WALL, &Default::default())
                });
            });
        }
    }
}

fn views(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("status");
    for size in SIZES {
        let records = records(size).unwrap();
        let observed = whole(&records);
        group.throughput(Throughput::Elements(size.into()));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| status_of(black_box(&observed), black_box(&records), WALL));
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("status_json");
    for size in SIZES {
        let records = records(size).unwrap();
        let report = status_of(&whole(&records), &records, WALL);
        group.throughput(Throughput::Elements(size.into()));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| serde_json::to_vec(black_box(&report)).unwrap());
        });
    }
}

fn rules_and_requests(criterion: &mut Criterion) {
    let mut rules = criterion.benchmark_group("ruleset_desired");
    for size in SIZES {
        let records = records(size).unwrap();
        rules.throughput(Throughput::Elements(size.into()));
        rules.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| Ruleset::desired(black_box(&records)).digest());
        });
    }
    rules.finish();
    let mut admissions = criterion.benchmark_group("admit_run");
    for size in SIZES {
        let records = records(size).unwrap();
        // The newest network has room: 200 of its addresses at most are taken.
        let mut request = request("one-more");
        request.networks = vec![format!("network-{}", (size - 1) / 200)];
        container::run(&records, &request, &stamp()).unwrap();
        admissions.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| container::run(black_box(&records), &request, &stamp()));
        });
    }
    admissions.finish();
    let mut invariants = criterion.benchmark_group("invariants");
    for size in SIZES {
        let records = records(size).unwrap();
        invariants.throughput(Throughput::Elements(size.into()));
        invariants.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| invariant::check_records(black_box(&records)));
        });
    }
}

fn encoding(criterion: &mut Criterion) {
    let records = records(1).unwrap();
    let changes = [
        ("node", Change::Node(records.node.clone().unwrap())),
        ("network", Change::Network(records.networks.values().next().unwrap().clone())),
        ("sandbox", Change::Sandbox(records.sandboxes.values().next().unwrap().clone())),
        ("container", Change::Container(records.containers.values().next().unwrap().clone())),
    ];
    for (name, change) in changes {
        let encoded = encode(&change);
        let body = encoded.body.clone().unwrap();
        criterion
            .bench_function(&format!("encode/{name}"), |bencher| bencher.iter(|| encode(black_box(&change))));
        criterion.bench_function(&format!("decode/{name}"), |bencher| {
            bencher.iter(|| decode(encoded.kind, encoded.kind.version(), black_box(&body)).unwrap());
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = passes, views, rules_and_requests, encoding
}
criterion_main!(benches);
