//! The real daemon against strict local counterparts: one binary, a module a theme.

mod spine;
mod support;
