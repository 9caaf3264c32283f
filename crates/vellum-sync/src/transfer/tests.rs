//! Plans carried out in directories of this machine.
