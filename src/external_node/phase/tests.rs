//! Every combination of what can be seen, and from each the whole way.

use super::*;

/// Longer than the longest way; a way that is longer goes in circles.
const LONGEST_WAY: usize = 40;

const PLACES: [NicPlace; 4] = [NicPlace::OwnName, NicPlace::UplinkName, NicPlace::OtherName, NicPlace::Gone];
const HOLDERS: [NameHolder; 3] = [NameHolder::NobodyElse, NameHolder::Port, NameHolder::Foreign];
const SHARES: [Share; 3] = [Share::None, Share::Part, Share::All];
const ROWS: [Rows; 6] = [Rows::Unknown, Rows::Dead, Rows::None, Rows::One, Rows::Broken, Rows::Ready];
const JOURNALS: [JournalState; 4] = [JournalState::None, JournalState::Attaching, JournalState::Attached, JournalState::Detaching];

/// Everything that can be seen. What contradicts itself is left out: a NIC under its own name leaves it to nobody else, what is gone has nothing, and a
/// port that is not there has nothing.
fn everything() -> Vec<Observation> {
    let mut all = Vec::new();
    for nic in PLACES {
        for holder in HOLDERS {
            for (on_nic, on_port) in SHARES.into_iter().flat_map(|a| SHARES.map(|b| (a, b))) {
                for rows in ROWS {
                    for journal in JOURNALS {
                        for bits in 0..64u8 {
                            let is = |bit: u8| bits & (1 << bit) != 0;
                            let (flows, guard, guard_needed, links_fit) = (is(0), is(1), is(2), is(3));
                            let (more_on_nic, more_on_port) = (is(4), is(5));
                            let claimed = Claimed::ByNobodyElse;
                            all.push(Observation {
                                claimed,
                                nic,
                                holder,
                                on_nic,
                                on_port,
                                more_on_nic,
                                more_on_port,
                                rows,
                                links_fit,
                                flows,
                                guard,
                                guard_needed,
                                journal,
                            });
                        }
                    }
                }
            }
        }
    }
    all.retain(possible);
    all
}

fn possible(seen: &Observation) -> bool {
    (seen.nic != NicPlace::OwnName || seen.holder == NameHolder::NobodyElse)
        && (seen.nic != NicPlace::Gone || seen.on_nic == Share::None)
        && (seen.holder == NameHolder::Port || seen.on_port == Share::None)
        && (seen.nic != NicPlace::Gone || !seen.more_on_nic)
        && (seen.holder == NameHolder::Port || !seen.more_on_port)
        && (seen.holder == NameHolder::Port || seen.rows != Rows::Ready)
}

/// Whether the host has its configuration in one piece.
fn whole(seen: &Observation) -> bool {
    seen.on_nic == Share::All || seen.on_port == Share::All
}

/// Follows the way to its end; the observations on it.
fn way(start: Observation, goal: Goal) -> (Vec<Observation>, Next) {
    let mut seen = vec![start];
    for _ in 0..LONGEST_WAY {
        let now = seen[seen.len() - 1];
        match next(&now, goal) {
            Next::Do(step) => seen.push(after(&now, step)),
            end => return (seen, end),
        }
    }
    panic!("from {start:#?} the way to {goal:?} goes in circles: {:#?}", &seen[seen.len() - 4..]);
}

#[test]
fn from_everything_there_is_a_way_to_both_ends() {
    let all = everything();
    assert!(all.len() > 5000, "{}", all.len());
    for start in all {
        for goal in [Goal::Attached, Goal::Plain] {
            let (seen, end) = way(start, goal);
            let last = seen[seen.len() - 1];
            match end {
                Next::Done if goal == Goal::Attached => {
                    assert_eq!(phase(&last), Phase::Attached, "{start:#?}");
                    assert!(
                        last.on_port == Share::All
                            && last.on_nic == Share::None
                            && last.flows
                            && last.links_fit
                            && last.rows == Rows::Ready,
                        "{start:#?}"
                    );
                }
                Next::Done => {
                    assert_eq!(phase(&last), Phase::Plain, "{start:#?}");
                    assert!(matches!(last.nic, NicPlace::OwnName | NicPlace::Gone) && !last.flows && !last.guard, "{start:#?}");
                    assert!(matches!(last.rows, Rows::None | Rows::Unknown | Rows::Dead), "{start:#?}");
                }
                // Only what nobody here can change may end a way before its goal.
                Next::Wait(Wait::NicGone) => assert_eq!(start.nic, NicPlace::Gone),
                Next::Wait(Wait::NameTaken) => assert_eq!(start.holder, NameHolder::Foreign),
                Next::Wait(Wait::Database) => assert!(matches!(start.rows, Rows::Unknown | Rows::Dead), "{start:#?}"),
                Next::Wait(Wait::NothingKnown) => assert!(start.journal == JournalState::None && !whole(&start), "{start:#?}"),
                Next::Wait(Wait::Claimed | Wait::OtherLabel) => panic!("{start:#?} is nobody else's"),
                Next::Do(_) => unreachable!("a way ends with an end"),
            }
        }
    }
}

#[test]
fn the_configuration_is_always_whole_somewhere() {
    for start in everything().into_iter().filter(|start| start.nic != NicPlace::Gone) {
        for goal in [Goal::Attached, Goal::Plain] {
            let (seen, _) = way(start, goal);
            for pair in seen.windows(2) {
                assert!(!whole(&pair[0]) || whole(&pair[1]), "lost between {:#?} and {:#?}", pair[0], pair[1]);
            }
            // Where it is nowhere and the journal knows it, it is put back before anything but notes in the journal and a guard is changed.
            if !whole(&start) && start.journal != JournalState::None {
                let healed = seen.iter().position(whole).unwrap_or_else(|| panic!("never whole: {start:#?}"));
                assert!(healed <= 2 + usize::from(start.guard), "{start:#?} is whole only after {healed} steps");
            }
        }
    }
}

/// The steps that take something from one place are taken only while the other one has everything.
#[test]
fn nothing_is_taken_from_the_only_place() {
    for seen in everything() {
        for goal in [Goal::Attached, Goal::Plain] {
            let Next::Do(step) = next(&seen, goal) else { continue };
            let journalled = seen.journal != JournalState::None;
            match step {
                Step::StripNic if journalled => assert!(!seen.more_on_nic, "{seen:#?}"),
                Step::StripPort | Step::DeletePorts | Step::RemoveLeftover | Step::CreatePorts if journalled => {
                    assert!(!seen.more_on_port || seen.nic == NicPlace::Gone, "{step:?} at {seen:#?}");
                }
                _ => {}
            }
            match step {
                // What was given to one of them is put onto the other one, which has all the rest.
                Step::KeepOfNic | Step::KeepOfPort => assert!(whole(&seen), "{seen:#?}"),
                Step::StripNic | Step::Guard => {
                    assert!(seen.on_port == Share::All && seen.rows == Rows::Ready && seen.flows, "{step:?} at {seen:#?}");
                }
                Step::StripPort | Step::RemoveLeftover => assert_eq!(seen.on_nic, Share::All, "{step:?} at {seen:#?}"),
                Step::DeletePorts => {
                    assert!(seen.on_nic == Share::All || seen.on_port != Share::All || seen.nic == NicPlace::Gone, "{seen:#?}");
                    assert!(!seen.guard || seen.nic != NicPlace::UplinkName, "the guard would keep the host deaf: {seen:#?}");
                }
                Step::Rename => assert!(seen.on_nic == Share::All || seen.on_port == Share::All, "{seen:#?}"),
                _ => {}
            }
        }
    }
}

/// While nobody serves the port, the host ends up on the NIC, with nothing that leads its packets to the port: whatever is waited for then.
#[test]
fn a_port_that_nobody_serves_claims_nothing() {
    for start in everything().into_iter().filter(|start| matches!(start.rows, Rows::Dead | Rows::Broken | Rows::One)) {
        let known = start.journal != JournalState::None && start.nic != NicPlace::Gone;
        for goal in [Goal::Attached, Goal::Plain] {
            let (seen, end) = way(start, goal);
            let before_mending = seen.iter().find(|seen| {
                let now = next(seen, goal);
                matches!(now, Next::Do(Step::CreatePorts | Step::Rename | Step::DeletePorts) | Next::Wait(_))
            });
            if let Some(then) = before_mending.filter(|then| known && then.guard_needed) {
                let claims = then.on_port != Share::None && then.holder == NameHolder::Port;
                assert!(then.on_nic == Share::All && !then.guard, "{end:?}: {then:#?}");
                assert!(!claims || goal == Goal::Plain && then.rows != Rows::Dead, "{then:#?}");
            }
        }
    }
}

#[test]
fn nothing_is_touched_before_the_journal_stands() {
    for seen in everything().into_iter().filter(|seen| seen.journal == JournalState::None) {
        if let Next::Do(step) = next(&seen, Goal::Attached) {
            assert_eq!(step, Step::WriteJournal, "{seen:#?}");
        }
    }
}

/// Whatever is seen of a NIC that another agent has, and whatever is missing: nothing but our own journal is touched, and it speaks no more afterwards.
#[test]
fn what_another_agent_has_is_left_alone() {
    for start in everything().into_iter().map(|seen| Observation { claimed: Claimed::ByAnother, ..seen }) {
        for (goal, wanted) in [(Goal::Attached, Next::Wait(Wait::Claimed)), (Goal::Plain, Next::Done)] {
            let aside = Observation { journal: JournalState::None, ..start };
            let (seen, end) = way(start, goal);
            assert_eq!(end, wanted, "{start:#?}");
            assert!(seen.iter().skip(1).all(|then| *then == aside) && seen.len() <= 2, "{seen:#?}");
        }
        let renamed = Observation { claimed: Claimed::UnderAnotherLabel, ..start };
        assert_eq!([Goal::Attached, Goal::Plain].map(|goal| next(&renamed, goal)), [Next::Wait(Wait::OtherLabel); 2]);
    }
}

/// What is told of a NIC is where it stands, also when its journal was lost, or its ports bear another label.
#[test]
fn no_phase_hides_an_uplink() {
    let (there, _) = way(plain(), Goal::Attached);
    let attached = there[there.len() - 1];
    let without_journal = Observation { journal: JournalState::None, ..attached };
    assert_eq!(phase(&without_journal), Phase::Moved);
    assert_eq!(phase(&Observation { claimed: Claimed::ByAnother, ..without_journal }), Phase::Plain);
    let hidden = Observation { claimed: Claimed::UnderAnotherLabel, rows: Rows::None, flows: false, ..attached };
    assert_eq!(phase(&hidden), Phase::Moved);
    assert_eq!(phase(&Observation { holder: NameHolder::NobodyElse, ..hidden }), Phase::Renamed);
    assert_eq!(phase(&Observation { on_nic: Share::All, ..hidden }), Phase::FlowsInstalled);
}

#[test]
fn a_way_can_be_turned_round_at_every_step() {
    let plain = plain();
    let (there, _) = way(plain, Goal::Attached);
    for seen in &there {
        let (back, end) = way(*seen, Goal::Plain);
        assert_eq!((end, back[back.len() - 1]), (Next::Done, plain));
    }
    let (back, _) = way(there[there.len() - 1], Goal::Plain);
    for seen in back {
        assert_eq!(way(seen, Goal::Attached).1, Next::Done);
    }
}

/// A NIC that nobody has touched.
pub(in crate::external_node) fn plain() -> Observation {
    Observation {
        claimed: Claimed::ByNobodyElse,
        nic: NicPlace::OwnName,
        holder: NameHolder::NobodyElse,
        on_nic: Share::All,
        on_port: Share::None,
        more_on_nic: false,
        more_on_port: false,
        rows: Rows::None,
        links_fit: true,
        flows: false,
        guard: false,
        guard_needed: true,
        journal: JournalState::None,
    }
}

fn steps(start: Observation, goal: Goal) -> Vec<Step> {
    let (seen, _) = way(start, goal);
    seen.iter().filter_map(|seen| if let Next::Do(step) = next(seen, goal) { Some(step) } else { None }).collect()
}

#[test]
fn the_usual_way() {
    use Step::*;
    let there = [WriteJournal, Rename, CreatePorts, InstallFlows, CopyToPort, StripNic, Guard, Confirm];
    assert_eq!(steps(plain(), Goal::Attached), there);
    let (seen, _) = way(plain(), Goal::Attached);
    let phases: Vec<Phase> = seen.iter().map(phase).collect();
    assert_eq!(
        phases,
        [
            Phase::Plain,
            Phase::Prepared,
            Phase::Renamed,
            Phase::PortsCreated,
            Phase::FlowsInstalled,
            Phase::FlowsInstalled,
            Phase::Moved,
            Phase::Moved,
            Phase::Attached
        ]
    );
    let back = [MarkDetaching, CopyToNic, DropGuard, DeletePorts, RenameBack, RemoveFlows, DropJournal];
    assert_eq!(steps(seen[seen.len() - 1], Goal::Plain), back);
}

#[test]
fn known_accidents() {
    use Step::*;
    let attached = way(plain(), Goal::Attached).0.pop().unwrap();
    // The rows outlived a reboot; the NIC has its own name and what the boot gave it.
    let rebooted = Observation { rows: Rows::Broken, ..plain() };
    assert_eq!(steps(rebooted, Goal::Attached)[..3], [WriteJournal, Rename, CreatePorts]);
    // The switch went away with its ports and made them anew, bare.
    let bare = Observation { on_port: Share::None, flows: false, ..attached };
    assert_eq!(steps(bare, Goal::Attached), [CopyToPort, InstallFlows]);
    // The switch is dead: the NIC serves the host until it is back.
    let dead = Observation { rows: Rows::Broken, flows: false, ..attached };
    assert_eq!(steps(dead, Goal::Attached), [DropGuard, CopyToNic, StripPort, CreatePorts, InstallFlows, CopyToPort, StripNic, Guard]);
    // Even the database is dead: the way back goes as far as it can.
    let blind = Observation { rows: Rows::Unknown, flows: false, ..attached };
    assert_eq!(steps(blind, Goal::Plain), [MarkDetaching, CopyToNic, DropGuard, StripPort]);
    // As long as the switch works, nothing needs the database.
    assert_eq!(next(&blind, Goal::Attached), Next::Wait(Wait::Database));
    // Switch and database are dead: the NIC serves the host, though its wish is another.
    let dead = Observation { rows: Rows::Dead, ..blind };
    assert_eq!(steps(dead, Goal::Attached), [DropGuard, CopyToNic, StripPort]);
    // Somebody has set the uplink down.
    assert_eq!(steps(Observation { links_fit: false, ..attached }, Goal::Attached), [MendLinks]);
}
