//! The functions of a file.

use std::{fs, path::Path};

use syn::{
    FnArg, ImplItemFn, ItemFn, Pat, PatType, Signature,
    visit::{self, Visit},
};

/// The names of functions.
#[derive(Default)]
pub struct Functions {
    /// Those that take a tuple apart among their parameters.
    pub with_tuples: Vec<String>,
    pub tests: Vec<String>,
}

impl Functions {
    pub fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).expect("a readable file");
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut functions = Self::default();
        functions.visit_file(&parsed);
        functions
    }

    fn add(&mut self, signature: &Signature) {
        let is_tuple = |argument: &FnArg| matches!(argument, FnArg::Typed(PatType { pat, .. }) if matches!(&**pat, Pat::Tuple(tuple) if !tuple.elems.is_empty()));
        if signature.inputs.iter().any(is_tuple) {
            self.with_tuples.push(signature.ident.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig);
        // `#[test]`, `#[tokio::test]`.
        let is_test = function
            .attrs
            .iter()
            .any(|attribute| attribute.path().segments.last().is_some_and(|segment| segment.ident == "test"));
        if is_test {
            self.tests.push(function.sig.ident.to_string());
        }
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.sig);
        visit::visit_impl_item_fn(self, function);
    }

    /// Tests of random cases are in a macro of their own.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if call.path.is_ident("proptest") {
            let tokens = call.tokens.to_string();
            let names = tokens.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
            self.tests.extend(names.map(|name| name.trim().to_owned()));
        }
    }
}
