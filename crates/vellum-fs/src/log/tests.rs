//! What was appended is read back; what a crash leaves is told from what never was.
