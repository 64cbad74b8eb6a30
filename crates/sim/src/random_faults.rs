//! Random faults for a limited time: killed components, disk failures, network faults and driver faults.

use crate::entropy::Rng;
use crate::net::FaultRates;
use crate::process::{Process, Target};
use crate::world::World;
use csi::Code;
use csi::directory::Order;
use std::time::Duration;

pub struct RandomFaults {
    pub world: World,
    pub rng: Rng,
}

/// With random faults but without late writes and lagging watches, a component may act this long on the old value of
/// a spec. Restarts and retries with backoff need this time.
const ECHO_WITHOUT_DELAYS: Duration = Duration::from_secs(45);
/// If components are killed more often than this, they may make no progress until the faults stop.
const KILL_INTERVAL_MIN_MS: u64 = 5_000;

/// Random faults stop after this time, so that the story can end.
const DURATION_MAX: Duration = Duration::from_secs(240);

/// Ordinary delays change the order of events that happen at the same time.
pub const ORDINARY_DELAYS: FaultRates = FaultRates { delay_ms: 2, ..FaultRates::NONE };

/// Stops all faults and releases held watch events.
pub fn stop(world: &World) {
    world.net.set_fault_rates(ORDINARY_DELAYS);
    world.driver.clear_faults();
    world.each_controller(Process::release_watches);
}

impl RandomFaults {
    pub async fn run(mut self) {
        let length = Duration::from_millis(self.rng.below(u64::try_from(DURATION_MAX.as_millis()).unwrap_or(u64::MAX)));
        let pause_max = 200 + self.rng.below(20_000);
        // In some runs nothing is delivered late. There the rules are stricter, and final states are compared.
        let is_prompt = self.rng.chance(400);
        let mut rates = self.draw_rates();
        if is_prompt {
            (rates.late_write, rates.lag_watch) = (0, 0);
        }
        if is_prompt && pause_max > KILL_INTERVAL_MIN_MS {
            self.world.set_echo(ECHO_WITHOUT_DELAYS);
        }
        self.world.log.record(format!("random faults for {} ms: {rates:?}", length.as_millis()));
        self.world.net.set_fault_rates(rates);
        let injecting = async {
            loop {
                tokio::time::sleep(Duration::from_millis(self.rng.below(pause_max))).await;
                self.inject_one(is_prompt);
            }
        };
        // The loop never ends by itself; the timeout is the normal end.
        let _ = tokio::time::timeout(length, injecting).await;
        self.world.log.record("random faults stopped");
        stop(&self.world);
    }

    fn draw_rates(&mut self) -> FaultRates {
        let mut some = |most: u64| if self.rng.chance(600) { self.rng.below(most) } else { 0 };
        FaultRates {
            drop: some(120),
            lose_answer: some(120),
            refuse: some(120),
            duplicate: some(200),
            late_write: some(80),
            cut_watch: some(100),
            lag_watch: some(60),
            delay_ms: 1 + some(200),
        }
    }

    fn inject_one(&mut self, is_prompt: bool) {
        let world = &self.world;
        let target = if self.rng.chance(500) { Target::All } else { Target::nth(self.rng.below(100)) };
        match self.rng.below(14) {
            0..=2 => {
                let process_configs = world.process_configs();
                // With several controller processes, one of them may be killed alone.
                let alone =
                    if process_configs.len() > 1 { self.rng.below(process_configs.len() as u64 + 1) } else { 0 };
                match usize::try_from(alone).ok().and_then(|alone| process_configs.get(alone.checked_sub(1)?)) {
                    Some((list, _)) => {
                        world.log.fault("crew-killed", list);
                        world.kill_process(list);
                    }
                    None => {
                        world.log.fault("controllers-killed", "");
                        world.kill_controllers();
                    }
                }
            }
            3 => {
                world.log.fault("nodes-killed", "");
                world.kill_nodes();
            }
            4 => {
                world.log.fault("server-crashed", "");
                world.crash_server();
            }
            5 => {
                let syncs = self.rng.below(6);
                world.log.record(format!("the disk will fail after {syncs} more syncs"));
                world.fail_disk(usize::try_from(syncs).unwrap_or(0));
            }
            6 => {
                let forgotten = self.rng.chance(300);
                world
                    .log
                    .fault("watches-cut", if forgotten { format!("those {target} get 410") } else { String::new() });
                world.each_controller(
                    |process| if forgotten { process.expire_watches(target) } else { process.cut_watches() },
                );
            }
            7..=9 if is_prompt => self.inject_driver_fault(is_prompt),
            7 => {
                let held = self.rng.chance(500);
                world.log.fault("watches-held", if held { format!("those {target}") } else { "released".to_owned() });
                world.each_controller(
                    |process| if held { process.hold_watches(target) } else { process.release_watches() },
                );
            }
            8 => {
                let by = Duration::from_millis(self.rng.below(10_000));
                world.log.fault("reads-late", format!("by {} ms, those {target}", by.as_millis()));
                world.each_controller(|process| process.delay_reads(by, target));
            }
            9 => {
                world.log.fault("cut-off", "");
                world.disconnect_leader();
            }
            10 => {
                world.log.fault("driver-killed", "");
                world.kill_driver();
            }
            11 => {
                world.log.fault("all-killed", "");
                world.kill_all();
            }
            _ => self.inject_driver_fault(is_prompt),
        }
    }

    fn inject_driver_fault(&mut self, is_prompt: bool) {
        const CALLS: [&str; 8] = [
            "CreateVolume",
            "DeleteVolume",
            "ControllerExpandVolume",
            "ControllerModifyVolume",
            "GetCapacity",
            "Probe",
            "GetPluginInfo",
            "ControllerGetCapabilities",
        ];
        const CODES: [Code; 5] =
            [Code::Internal, Code::Unavailable, Code::DeadlineExceeded, Code::Aborted, Code::ResourceExhausted];
        let call = self.rng.pick(&CALLS);
        let order = match self.rng.below(if is_prompt { 3 } else { 5 }) {
            0 => Order::fail(call, self.rng.pick(&CODES)),
            1 => Order::fail(call, Code::DeadlineExceeded).after(),
            2 => Order::lose_answer(call),
            3 => Order::delay(call, Duration::from_millis(self.rng.below(60_000))).goes_on(),
            _ => Order::delay(call, Duration::from_millis(self.rng.below(20_000))),
        };
        self.world.log.fault("driver-fault", format!("{order:?}"));
        self.world.driver.inject(order.times(1));
    }
}
