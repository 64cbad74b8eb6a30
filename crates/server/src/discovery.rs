//! What is served: discovery documents, plain and aggregated.
