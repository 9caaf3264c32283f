//! `--iconv`: names in the charsets of two hosts.
//!
//! Invariant: a plan is in the charset of the destination, and what a person reads is in that of this host.

use std::sync::Arc;

use vellum_host::escape::format_path;
use vellum_sync::ends::SourceEnd;
use vellum_sync::ends::name_charset::{
    CharsetSpecError, ConvertedSource, NameCharsets, NameConversion, SourcePlace,
};
use vellum_sync::local::receive::SyncReport;
use vellum_sync::model::listing::TreeListing;
use vellum_sync::plan::{PlanRefusal, PlanRemark, SyncPlan};
use vellum_sync::rules::SyncFilters;

use super::args::Args;
use crate::error::{CliError, Result};

/// The charset of this host's locale; UTF-8 if it names none.
fn locale_charset() -> String {
    // LC_ALL overrides LC_CTYPE, which overrides LANG (locale(7)).
    let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default();
    let charset = locale.split_once('.').map(|(_, charset)| charset.split('@').next().unwrap_or_default());
    charset.unwrap_or("UTF-8").to_owned()
}

/// The charsets that were requested; `-` requests none.
pub fn parse_name_charsets(args: &Args) -> Result<Option<NameCharsets>> {
    let Some(typed) = args.places.iconv.as_deref().filter(|typed| *typed != "-") else { return Ok(None) };
    if args.two_way.two_way {
        let message = "--iconv has no meaning with --two-way";
        return Err(CliError::usage_error(message, "leave one of them out"));
    }
    NameCharsets::parse_spec(typed, &locale_charset()).map(Some).map_err(|error| {
        let hint = match error {
            CharsetSpecError::NotTwo(_) => "--iconv LOCAL,REMOTE, as in --iconv utf-8,iso-8859-1",
            CharsetSpecError::Unknown(_) => "docs/sync.md says which charsets there are",
            CharsetSpecError::RemoteLocale => "name it, as in --iconv .,iso-8859-1",
        };
        CliError::usage_error(format!("--iconv: {error}"), hint)
    })
}

/// A path that was typed for the other host, as that knows it.
pub fn convert_remote_path(args: &Args, typed: &[u8]) -> Result<Vec<u8>> {
    let Some(charsets) = parse_name_charsets(args)? else { return Ok(typed.to_vec()) };
    charsets.to_remote().convert(typed).map_err(|error| {
        CliError::usage_error(format!("'{}' {error}", format_path(typed)), "--iconv takes LOCAL,REMOTE")
    })
}

/// A source on another host, listed in the charset of this one.
pub fn convert_remote_source(
    source: Box<dyn SourceEnd>,
    charsets: Option<NameCharsets>,
    place: SourcePlace,
) -> Box<dyn SourceEnd> {
    match charsets {
        Some(charsets) => Box::new(ConvertedSource::new(source, charsets.to_local(), place)),
        None => source,
    }
}

/// The filters with listed paths in another charset. Rules stay as they are, as with rsync.
pub fn convert_listed_paths(filters: &Arc<SyncFilters>, conversion: NameConversion) -> Arc<SyncFilters> {
    let Some(selection) = &filters.selection else { return Arc::clone(filters) };
    let selection = Some(selection.convert_paths(&|path| conversion.convert_path(path)));
    Arc::new(SyncFilters { selection, ..(**filters).clone() })
}

/// A run that is reported to the user.
pub struct ShownRun<'a> {
    pub from: &'a mut TreeListing,
    pub to: &'a mut TreeListing,
    pub plan: &'a mut SyncPlan,
    pub done: Option<&'a mut SyncReport>,
}

impl ShownRun<'_> {
    /// Converts all names of it; the paths of what is not listed at the source are this host's already.
    pub fn convert_names(self, conversion: NameConversion) {
        let convert = |path: &[u8]| conversion.convert_path(path);
        self.from.rename_for_display(&convert);
        self.to.rename_for_display(&convert);
        let unlisted = self.to.unlisted.iter_mut().map(|unlisted| &mut unlisted.path);
        let problems = self.done.into_iter().flat_map(|done| &mut done.problems);
        let remarks = self.plan.remarks.iter_mut().filter_map(PlanRemark::path_mut);
        let refusal = match &mut self.plan.refusal {
            Some(PlanRefusal::Store { path }) => Some(path),
            _ => None,
        };
        let paths = unlisted.chain(problems.map(|problem| &mut problem.path)).chain(remarks).chain(refusal);
        for path in paths {
            *path = convert(path);
        }
    }
}
