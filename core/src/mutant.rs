//! Known bugs, planted one at a time, so that the simulator can show that it finds them.
//!
//! A site reads `if mutant!(UndoNotReversed) { … }`. Without the feature `mutants` that is `if false`: nothing of
//! this is in a build that meets a real node, and `backend-linux` refuses to be compiled with it.

/// Whether bugs can be planted in this build.
pub const CAN_BE_PLANTED: bool = cfg!(feature = "mutants");

/// Whether this bug is planted.
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

/// Whether this bug is planted.
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutant::is_planted($crate::mutant::Mutant::$name)
    };
}

#[cfg(feature = "mutants")]
pub use planted::{Mutant, is_planted, plant};

#[cfg(feature = "mutants")]
mod planted {
    use core::sync::atomic::{AtomicUsize, Ordering};

    macro_rules! mutants {
        ($($name:ident: $what:literal,)*) => {
            /// A known bug.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
            pub enum Mutant {
                $(#[doc = $what] $name,)*
            }

            impl Mutant {
                /// Every one.
                pub const ALL: &'static [Self] = &[$(Self::$name,)*];

                /// What is wrong with it, in a sentence.
                pub fn what(self) -> &'static str {
                    match self {
                        $(Self::$name => $what,)*
                    }
                }
            }
        };
    }

    mutants! {
        JournalAfterEffect: "an operation is written down after its first step instead of before it",
        AskedInsideLoop: "whether a sandbox is up is asked again between the steps that bring it up",
        SubnetFreedFirst: "a network's record goes before its bridge does",
        OwnsNetnsIgnored: "the removal of a pod's member destroys the pod's namespaces",
        RebindIgnored: "a replug makes new namespaces beside those of the living workload",
        PodForgottenAtRestart: "a later start of a pod's member goes into a sandbox of its own",
        SpecForgottenAtRestart: "a later start of a container has no environment",
        PortsNotReplayed: "published ports are not compared with what the uplink helper forwards",
        PublishNotLookedAt: "the outcome of publishing a port is ignored",
        PortRecordedAfterBinding: "a published port is on record only once it is bound",
        UplinkNotLookedAt: "nothing else is looked at where pin and control answer",
        CachedContainerLiveness: "a recorded process is taken for a living one",
        CachedPinLiveness: "a recorded pin is taken for a living one",
        MonitorDeathIsDeath: "the death of a monitor is taken for its container's",
        KeeperTakenUnseen: "a way into the user namespace is taken for one into the router",
        ForeignControlKept: "a control of another build is kept",
        UndoNotReversed: "an undo runs in the order of the steps",
        UndoStopsAtFailure: "an undo ends with the first step of it that fails",
        UndoFailureForgotten: "an undo that failed closes its operation",
        UnknownHadNoEffect: "a step that failed is taken to have had no effect",
        KilledStepHadNoEffect: "the step during which a daemon was killed is taken to have had no effect",
        FinishSkipsStep: "an interrupted operation is finished from the step after the interrupted one",
        OldPlanCarriedOut: "the plan of an interrupted repair is carried out instead of forgotten",
        BeginNotDurable: "the begin of an operation does not outlive loss of power",
        EndNotDurable: "the end of an operation does not outlive loss of power",
        LinksBeforeRules: "in a new router links are plugged before there are rules",
        OnlyFirstAttachmentGoverned: "rules are made for the first link of a sandbox only",
        OnlyIpv4Governed: "rules are made for IPv4 only",
        InternalNetworkLeaves: "an internal network is given a way out",
        GroupOfAnotherTenant: "a tenant is put into the group of another one on the network",
        LeavingStillGoverned: "a repair speaks for a sandbox that an open operation removes",
        RepairNotAwaited: "elements are removed while a repair that speaks for them runs",
        AddressOfStoppedReused: "the address of a stopped container is handed out again",
        SlotReused: "the slot of the last attachment is handed out again",
        DaemonGenerationNotRaised: "a daemon takes the generation of the one before it",
        RouterGenerationNotRaised: "a new router takes the generation of the one before it",
        SnapshotGenerationFalls: "a new daemon's snapshots count from the beginning",
        StaleLookBelieved: "a look made before a container's last start is believed",
        LocksIgnored: "an operation is admitted while another works on the same object",
        BusyIgnored: "a repair works on what an open operation works on",
        HarsherCure: "a workload that could be replugged is ended",
        StoppedComesBack: "a pod's member that was stopped is started by a repair",
        NodeDeathIsOwnEnd: "what died with the node is taken to have ended by itself",
        DownIsOwnEnd: "what was ended to take the node down is taken to have ended by itself",
        RecoveredAsPlanned: "who was to be cured is reported as recovered",
    }

    /// The planted one's number, from 1; 0 is none. One for the whole process: core has no other state.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    /// Plants a bug in place of the one before, or none.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.store(mutant.map_or(0, |mutant| mutant as usize + 1), Ordering::SeqCst);
    }

    /// Whether this one is planted.
    pub fn is_planted(mutant: Mutant) -> bool {
        PLANTED.load(Ordering::Relaxed) == mutant as usize + 1
    }
}
