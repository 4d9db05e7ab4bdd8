//! The modules of a crate and what they depend on, read from its sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Item, UseTree,
    visit::{self, Visit},
};

/// A module's path from the root of its crate.
type Name = Vec<String>;

/// What one module refers to, as written: beginning with `crate`, `self`, `super` or any other name.
#[derive(Default)]
struct Found {
    paths: BTreeSet<Name>,
}

/// The modules of a crate.
pub struct Modules {
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Modules {
    /// Reads all modules below a folder of sources, but for tests.
    pub fn read(folder: &Path) -> Self {
        let mut by_name: BTreeMap<Name, Found> = BTreeMap::new();
        for file in files(folder, false) {
            let text = fs::read_to_string(&file).expect("a readable file");
            let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let mut found = Found::default();
            found.visit_file(&parsed);
            by_name.insert(name_of(folder, &file), found);
        }
        let names: BTreeSet<Name> = by_name.keys().cloned().collect();
        let edges = by_name.iter().map(|(name, found)| {
            let targets = found.paths.iter().filter_map(|path| resolve(&names, name, path));
            (joined(name), targets.filter(|target| target != name).map(|target| joined(&target)).collect())
        });
        Self { edges: edges.collect() }
    }

    /// Whether there is a module of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.edges.contains_key(name)
    }

    /// Returns which module depends on which.
    pub fn dependencies(&self) -> impl Iterator<Item = (&str, &str)> {
        self.edges.iter().flat_map(|(from, to)| to.iter().map(move |to| (from.as_str(), to.as_str())))
    }

    /// Returns the sets of modules that depend on each other.
    pub fn circles(&self) -> Vec<Vec<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.edges.keys().map(|name| (name.as_str(), self.reached_from(name))).collect();
        let mut circles = BTreeSet::new();
        for (name, targets) in &reached {
            let circle: Vec<&str> = targets.iter().copied().filter(|target| reached[target].contains(name)).collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    fn reached_from<'m>(&'m self, name: &'m str) -> BTreeSet<&'m str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![name];
        while let Some(next) = open.pop() {
            for target in self.edges.get(next).into_iter().flatten() {
                if reached.insert(target.as_str()) {
                    open.push(target);
                }
            }
        }
        reached
    }
}

/// Returns the files below a folder of sources.
pub fn files(folder: &Path, with_tests: bool) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if !with_tests && entry.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if entry.is_dir() {
            files.extend(self::files(&entry, with_tests));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
    files
}

/// The name of the module in a file; the crate's root and programs have none.
fn name_of(folder: &Path, file: &Path) -> Name {
    let inside = file.strip_prefix(folder).expect("a file of the folder").with_extension("");
    let mut name: Name = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if ["lib", "main", "mod"].iter().any(|root| name.last().is_some_and(|last| last == root)) {
        name.pop();
    }
    name
}

fn joined(name: &[String]) -> String {
    if name.is_empty() { "crate".to_owned() } else { name.join("::") }
}

/// Returns the module that a path of a module leads to, or into.
fn resolve(names: &BTreeSet<Name>, module: &Name, path: &[String]) -> Option<Name> {
    let mut base = module.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => (base, rest) = (Name::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        child => {
            base.push(child.to_owned());
            names.contains(&base).then_some(())?;
            rest = &rest[1..];
        }
    }
    for part in rest {
        base.push(part.clone());
        if !names.contains(&base) {
            base.pop();
            break;
        }
    }
    Some(base)
}

impl Found {
    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: String| before.iter().cloned().chain([name]).collect::<Name>();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(path.ident.to_string()), &path.tree),
            UseTree::Name(name) if name.ident == "self" => drop(self.paths.insert(before.to_vec())),
            UseTree::Name(name) => drop(self.paths.insert(with(name.ident.to_string()))),
            UseTree::Rename(name) => drop(self.paths.insert(with(name.ident.to_string()))),
            UseTree::Glob(_) => drop(self.paths.insert(before.to_vec())),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(before, tree)),
        }
    }

    /// Adds the paths in a macro's arguments, which are tokens without a structure.
    fn add_tokens(&mut self, tokens: &str) {
        let text = tokens.replace(" :: ", "::");
        let words = text.split(|character: char| !character.is_alphanumeric() && !"_:".contains(character));
        let paths = words.filter(|word| word.contains("::") && !word.starts_with(':'));
        self.paths.extend(paths.map(|path| path.split("::").map(str::to_owned).collect::<Name>()));
    }
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let cfg = attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|of| of == "test");
        cfg || attribute.path().is_ident("test")
    })
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if is_of_tests(attributes) {
            return;
        }
        if let Item::Use(item) = item {
            self.add_tree(&[], &item.tree);
        }
        visit::visit_item(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(&call.tokens.to_string());
        visit::visit_macro(self, call);
    }
}
