//! Property of TOML configurations: what NVIDIA's installer has inserted is removed, and every other byte stays.

use node_tools::runtime::{entries::NvidiaEntries, toml_file};
use proptest::{
    prelude::*,
    sample::{Index, select},
};

use crate::{BIN, IMPORT};

/// The parents of the runtimes' tables in each schema. The last but one has the default, for containerd.
const SCHEMAS: [&[&str]; 3] = [
    &["plugins", "plugins.cri", "plugins.cri.containerd", "plugins.cri.containerd.runtimes"],
    &[
        "plugins",
        r#"plugins."io.containerd.cri.v1.runtime""#,
        r#"plugins."io.containerd.cri.v1.runtime".containerd"#,
        r#"plugins."io.containerd.cri.v1.runtime".containerd.runtimes"#,
    ],
    &["crio", "crio.runtime", "crio.runtime.runtimes"],
];

/// A part of the file: before the installer ran, and now, without and with the installer's entries.
#[derive(Clone, Debug)]
struct Piece {
    found: String,
    expected: String,
    installed: String,
}

impl Piece {
    fn foreign(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { found: text.clone(), expected: text.clone(), installed: text }
    }

    fn added_since(text: impl Into<String>) -> Self {
        Self { found: String::new(), ..Self::foreign(text) }
    }

    fn nvidias(text: impl Into<String>) -> Self {
        Self { installed: text.into(), ..Self::foreign("") }
    }

    fn changed(expected: impl Into<String>, installed: impl Into<String>) -> Self {
        Self { installed: installed.into(), ..Self::foreign(expected) }
    }
}

/// Generates lines without content.
fn blank() -> impl Strategy<Value = String> {
    let line = select(vec!["\n", " \t\n", "# why\n", "\t# [plugins] # \"x\n", "#\n"]);
    prop::collection::vec(line, 0..3).prop_map(|lines| lines.concat())
}

/// Generates the lines of a table, in any order of dotted keys.
fn lines() -> impl Strategy<Value = Vec<Piece>> {
    let value = select(vec![
        "1",
        "'a'",
        r#""a\u0041 # ""#,
        "{ x = 1,y=\"z\" }",
        "[ 1,2 , ]",
        "[\n  '/a', # a\n\n# b\n]",
        "'''\n[plugins]\n'''",
        "2024-01-01",
    ]);
    let assign = select(vec!["=", " = ", "  =\t"]);
    let (indent, end) = (select(vec!["", "  ", "\t"]), select(vec!["", "  # c", " "]));
    let line = (blank(), indent, any::<bool>(), assign, value, end);
    prop::collection::vec(line, 0..4).prop_map(|lines| {
        let line = |(at, (above, indent, is_dotted, assign, value, end))| {
            let dotted = if is_dotted { "d . " } else { "" };
            Piece::foreign(format!("{above}{indent}{dotted}'k{at}'{assign}{value}{end}\n"))
        };
        lines.into_iter().enumerate().map(line).collect()
    })
}

/// Generates the text from a table's header to its last line, given its name.
fn table() -> impl Strategy<Value = (String, &'static str, Vec<Piece>)> {
    (blank(), select(vec!["[@]\n", "  [ @ ]  # t\n", "\t[@]\t\n"]), lines())
}

fn at_line(pieces: &mut Vec<Piece>, from: usize, at: Index, piece: Piece) {
    pieces.insert(from + at.index(pieces.len() + 1 - from), piece);
}

prop_compose! {
    /// Generates a file's content. The installer's tables have the format of its library: sorted, indented, and each
    /// after an empty line.
    fn pieces()(
        schema in select(SCHEMAS.to_vec()),
        known in 0..5_usize,
        implicit in 0..3_usize,
        mut root in lines(),
        imports in prop::option::of(select(vec![
            ("imports = [ ]", "imports = [ @]"),
            ("imports=['/a']  # mine", "imports=['/a', @]  # mine"),
            ("imports = ['/a', '/b']", "imports = ['/a', @, '/b']"),
            ("imports = [\n  '/b', # b\n]", "imports = [\n  @,\n  '/b', # b\n]"),
            ("imports = [\n  \"/a\", # a\n '/b' , # b\n]", "imports = [\n  \"/a\", # a\n '/b', @ , # b\n]"),
        ])),
        parents in prop::collection::vec(table(), 4),
        others in prop::collection::vec(table(), 0..4),
        has_runc: bool,
        default in prop::option::of(any::<bool>()),
        (root_at, default_at, first_at, second_at, since_at) in any::<(Index, Index, Index, Index, Index)>(),
        (since, added_line) in (table(), any::<bool>()),
        (between, tail) in (prop::collection::vec(blank(), 3), blank()),
        (is_crlf, is_cut) in any::<(bool, bool)>(),
    ) -> Vec<Piece> {
        let known = known.min(schema.len());
        let named = |(above, header, lines): (String, &str, Vec<Piece>), name: &str| {
            [vec![Piece::foreign(above + &header.replace('@', name))], lines].concat()
        };
        let import = format!("\"{IMPORT}\"");
        at_line(&mut root, 0, root_at, match imports {
            Some((found, now)) => Piece::changed(format!("{found}\n"), format!("{}\n", now.replace('@', &import))),
            None => Piece::nvidias(format!("imports = [{import}]\n")),
        });
        if added_line {
            at_line(&mut root, 0, since_at, Piece::added_since("# since\nsince = 1\n"));
        }

        let is_containerds = schema[0] == "plugins";
        let defaults = schema.len() - 2;
        let nvidias_default = "default_runtime_name = \"nvidia\"";
        let mut tables = Vec::new();
        for (at, (name, parent)) in schema.iter().zip(parents).enumerate().take(known).skip(implicit.min(known / 2)) {
            let mut table = named(parent, name);
            if let Some(has_other) = default.filter(|_| is_containerds && at == defaults) {
                let line = if has_other {
                    Piece::changed("default_runtime_name = \"crun\" # c\n", format!("{nvidias_default} # c\n"))
                } else {
                    Piece::nvidias(format!("      {nvidias_default}\n"))
                };
                at_line(&mut table, 1, default_at, line);
            }
            tables.push(table);
        }
        if has_runc && known == schema.len() {
            tables.push(vec![Piece::foreign(format!("[{}.runc]\nruntime_type = 'x'\n", schema[known - 1]))]);
        }
        let site = if known == 0 { "site" } else { schema[0] };
        for (at, other) in others.into_iter().enumerate() {
            tables.insert(first_at.index(tables.len() + 1), named(other, &format!("{site}.'o.{at}'")));
        }
        if !added_line {
            // The original is given back if an empty table is all that others have added.
            let mut since = named(since, "since");
            since.insert(1, Piece::foreign("since = 1\n"));
            since.push(Piece::foreign("[since.empty]\n"));
            let since = since.into_iter().map(|piece| Piece::added_since(piece.expected)).collect();
            tables.insert(since_at.index(tables.len() + 1), since);
        }

        let mut nvidias = Vec::new();
        for (at, name) in schema.iter().enumerate().skip(known) {
            let indent = "  ".repeat(at);
            nvidias.push(Piece::nvidias(format!("\n{indent}[{name}]\n")));
            if is_containerds && at == defaults && default.is_some() {
                nvidias.push(Piece::nvidias(format!("{indent}  {nvidias_default}\n")));
            }
        }
        let runtimes = schema[schema.len() - 1];
        let programs = [("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy")];
        for ((name, program), between) in programs.into_iter().zip(between) {
            nvidias.push(Piece::foreign(between));
            nvidias.push(Piece::nvidias(format!(
                "\n        [{runtimes}.{name}]\n          container_annotations = [\"cdi.k8s.io/*\"]\n          \
                 runtime_type = \"io.containerd.runc.v2\"\n\n          [{runtimes}.{name}.options]\n            \
                 BinaryName = \"{BIN}/nvidia-container-runtime{program}\"\n            SystemdCgroup = true\n"
            )));
        }
        tables.insert(second_at.index(tables.len() + 1), nvidias);

        let mut pieces = root;
        pieces.extend(tables.concat());
        pieces.push(Piece::foreign(tail));
        pieces.retain(|piece| !piece.installed.is_empty());
        if is_cut && let Some(last) = pieces.last_mut().filter(|last| last.expected == last.installed) {
            for text in [&mut last.found, &mut last.expected, &mut last.installed] {
                text.pop();
            }
        }
        for piece in pieces.iter_mut().filter(|_| is_crlf) {
            for text in [&mut piece.found, &mut piece.expected, &mut piece.installed] {
                *text = text.replace('\n', "\r\n");
            }
        }
        pieces
    }
}

proptest! {
    #[test]
    fn removing_the_installers_entries_keeps_every_other_byte(pieces in pieces()) {
        let text = |part: fn(&Piece) -> &str| pieces.iter().map(part).collect::<String>();
        let (found, expected) = (text(|piece| &piece.found), text(|piece| &piece.expected));
        let installed = text(|piece| &piece.installed);
        let entries = NvidiaEntries { handler: "nvidia".into(), install_dir: BIN.into() };
        prop_assert!(toml_file::contains_entries(&installed, &entries), "{}", installed);
        let rest = toml_file::without_entries(&installed, Some(&found), Some(IMPORT), &entries).unwrap();
        prop_assert_eq!(rest.as_deref(), Some(expected.as_str()), "{}", installed);
        // Without others' changes since.
        let rest = toml_file::without_entries(&installed, Some(&expected), Some(IMPORT), &entries).unwrap();
        prop_assert_eq!(rest, Some(expected));
    }
}
