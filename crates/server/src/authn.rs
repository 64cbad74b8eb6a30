//! Who is asking: client certificates, tokens, and the certificates and keys behind them.
