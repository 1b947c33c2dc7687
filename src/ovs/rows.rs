//! The rows that we follow, as the database has them: pure. Built from the first listing, kept up to date by what the monitor tells.
//!
//! Of a changed column the monitor tells the new value if it holds at most one, else the *difference*: elements that were and are not, or are
//! and were not (ovsdb-server(7), "Update2 Notification").

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::value::{Atom, Malformed, RowId, atom, map, optional, set};

/// The tables and columns that are followed.
pub(super) const FOLLOWED: &[(&str, &[&str])] = &[
    ("Open_vSwitch", &["cur_cfg", "next_cfg"]),
    ("Bridge", &["name", "ports", "datapath_type", "protocols"]),
    ("Port", &["name", "interfaces", "external_ids"]),
    ("Interface", &["name", "type", "ofport", "error", "mac_in_use", "mtu", "link_state"]),
];

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) switch: BTreeMap<RowId, SwitchRow>,
    pub(super) bridges: BTreeMap<RowId, BridgeRow>,
    pub(super) ports: BTreeMap<RowId, PortRow>,
    pub(super) interfaces: BTreeMap<RowId, InterfaceRow>,
}

/// The one row about the switch as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SwitchRow {
    /// Up to which change `ovs-vswitchd` has followed.
    pub(super) cur_cfg: i64,
    /// The last change.
    pub(super) next_cfg: i64,
}

/// A bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BridgeRow {
    pub(super) name: String,
    pub(super) ports: BTreeSet<RowId>,
    pub(super) datapath_type: String,
    pub(super) protocols: BTreeSet<String>,
}

/// A port of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortRow {
    pub(super) name: String,
    pub(super) interfaces: BTreeSet<RowId>,
    pub(super) external_ids: BTreeMap<String, String>,
}

/// An interface of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InterfaceRow {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) ofport: Option<i64>,
    pub(super) error: Option<String>,
    pub(super) mac_in_use: Option<String>,
    pub(super) mtu: Option<i64>,
    pub(super) link_state: Option<String>,
}

/// What can take a column.
trait Row: Default {
    /// Takes one column; for columns with many elements `value` is the difference (of a new row, that to nothing).
    fn take(&mut self, column: &str, value: &Value) -> Result<(), Malformed>;
}

impl Row for SwitchRow {
    fn take(&mut self, column: &str, value: &Value) -> Result<(), Malformed> {
        match column {
            "cur_cfg" => self.cur_cfg = atom(value)?,
            "next_cfg" => self.next_cfg = atom(value)?,
            _ => {}
        }
        Ok(())
    }
}

impl Row for BridgeRow {
    fn take(&mut self, column: &str, value: &Value) -> Result<(), Malformed> {
        match column {
            "name" => self.name = atom(value)?,
            "datapath_type" => self.datapath_type = atom(value)?,
            "ports" => toggle(&mut self.ports, set(value)?),
            "protocols" => toggle(&mut self.protocols, set(value)?),
            _ => {}
        }
        Ok(())
    }
}

impl Row for PortRow {
    fn take(&mut self, column: &str, value: &Value) -> Result<(), Malformed> {
        match column {
            "name" => self.name = atom(value)?,
            "interfaces" => toggle(&mut self.interfaces, set(value)?),
            "external_ids" => merge(&mut self.external_ids, map(value)?),
            _ => {}
        }
        Ok(())
    }
}

impl Row for InterfaceRow {
    fn take(&mut self, column: &str, value: &Value) -> Result<(), Malformed> {
        match column {
            "name" => self.name = atom(value)?,
            "type" => self.kind = atom(value)?,
            "ofport" => self.ofport = optional(value)?,
            "error" => self.error = optional(value)?,
            "mac_in_use" => self.mac_in_use = optional(value)?,
            "mtu" => self.mtu = optional(value)?,
            "link_state" => self.link_state = optional(value)?,
            _ => {}
        }
        Ok(())
    }
}

/// What is in one of both, but not in both.
fn toggle<T: Atom>(have: &mut BTreeSet<T>, difference: BTreeSet<T>) {
    for element in difference {
        if !have.remove(&element) {
            have.insert(element);
        }
    }
}

/// A pair that was there goes; any other takes the place of what its key had.
fn merge(have: &mut BTreeMap<String, String>, difference: BTreeMap<String, String>) {
    for (key, value) in difference {
        if have.get(&key) == Some(&value) {
            have.remove(&key);
        } else {
            have.insert(key, value);
        }
    }
}

impl Rows {
    /// Takes a listing or a change: `{table: {row: {"initial"|"insert"|"modify"|"delete": columns}}}`.
    ///
    /// # Errors
    /// What the protocol does not know, or a change of a row that was never told; the rows are then of no use any more.
    pub(super) fn take(&mut self, tables: &Value) -> Result<(), Malformed> {
        let tables = tables.as_object().ok_or_else(|| Malformed::new("tables", tables))?;
        for (table, rows) in tables {
            let rows = rows.as_object().ok_or_else(|| Malformed::new("rows", rows))?;
            match table.as_str() {
                "Open_vSwitch" => take_rows(&mut self.switch, rows)?,
                "Bridge" => take_rows(&mut self.bridges, rows)?,
                "Port" => take_rows(&mut self.ports, rows)?,
                "Interface" => take_rows(&mut self.interfaces, rows)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The bridge of this name.
    pub(super) fn bridge(&self, name: &str) -> Option<(&RowId, &BridgeRow)> {
        self.bridges.iter().find(|(_, bridge)| bridge.name == name)
    }

    /// Up to which change `ovs-vswitchd` has followed, and the last change; `None` while the database is empty.
    pub(super) fn progress(&self) -> Option<(i64, i64)> {
        self.switch.values().next().map(|row| (row.cur_cfg, row.next_cfg))
    }
}

fn take_rows<T: Row>(have: &mut BTreeMap<RowId, T>, changes: &Map<String, Value>) -> Result<(), Malformed> {
    for (id, change) in changes {
        let id = RowId::new(id);
        let (kind, columns) =
            change.as_object().and_then(|change| change.iter().next()).ok_or_else(|| Malformed::new("a change", change))?;
        let mut row = match kind.as_str() {
            "initial" | "insert" => T::default(),
            "modify" => have.remove(&id).ok_or_else(|| Malformed::new("a row that we know", change))?,
            "delete" => {
                have.remove(&id);
                continue;
            }
            _ => return Err(Malformed::new("a kind of change", change)),
        };
        let columns = columns.as_object().ok_or_else(|| Malformed::new("columns", columns))?;
        for (column, value) in columns {
            row.take(column, value)?;
        }
        have.insert(id, row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn port(rows: &Rows) -> &PortRow {
        &rows.ports[&RowId::new("p1")]
    }

    #[test]
    fn differences_of_sets_and_maps() {
        let mut rows = Rows::default();
        rows.take(&json!({"Port": {"p1": {"insert": {"name": "eth0", "interfaces": ["uuid", "i1"]}}}})).unwrap();
        assert!(port(&rows).external_ids.is_empty(), "columns at their default are not told");
        let ids = |value: Value| json!({"Port": {"p1": {"modify": {"external_ids": value}}}});
        rows.take(&ids(json!(["map", [["a", "1"], ["b", "2"]]]))).unwrap();
        // As a real server tells that `a` became 3, `b` went and `c` came.
        rows.take(&ids(json!(["map", [["a", "3"], ["b", "2"], ["c", "2"]]]))).unwrap();
        let wanted: BTreeMap<String, String> = [("a", "3"), ("c", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(port(&rows).external_ids, wanted);
        rows.take(&json!({"Port": {"p1": {"modify": {"interfaces": ["set", [["uuid", "i1"], ["uuid", "i2"]]]}}}})).unwrap();
        assert_eq!(port(&rows).interfaces, [RowId::new("i2")].into());
        rows.take(&json!({"Port": {"p1": {"delete": null}}})).unwrap();
        assert!(rows.ports.is_empty());
    }

    #[test]
    fn single_values_are_told_anew() {
        let mut rows = Rows::default();
        let change = |kind: &str, value: Value| json!({"Interface": {"i1": {kind: {"ofport": value}}}});
        rows.take(&change("initial", json!(2))).unwrap();
        for (told, seen) in [(json!(3), Some(3)), (json!(["set", []]), None), (json!(-1), Some(-1))] {
            rows.take(&change("modify", told)).unwrap();
            assert_eq!(rows.interfaces[&RowId::new("i1")].ofport, seen);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for bad in [
            json!([]),
            json!({"Port": []}),
            json!({"Port": {"p": {}}}),
            json!({"Port": {"p": {"modify": {"name": "x"}}}}),
            json!({"Port": {"p": {"upsert": {}}}}),
            json!({"Port": {"p": {"insert": {"name": 5}}}}),
        ] {
            assert!(Rows::default().take(&bad).is_err(), "{bad}");
        }
        let unknown = json!({"Queue": {"q": {"insert": {}}}, "Port": {"p": {"insert": {"name": "x", "tag": 5}}}});
        assert_eq!(Rows::default().take(&unknown), Ok(()), "what we did not ask for does not matter");
    }
}
