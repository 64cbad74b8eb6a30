//! Pod specs and pod templates: defaults, validation and warnings, shared by every kind that holds one.
