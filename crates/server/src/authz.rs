//! May they: RBAC with upstream's bootstrap roles, access reviews, no escalation.
