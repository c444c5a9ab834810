"""Generated blocks of README.md and docs/ that no other command shows: results, solutions, examples."""
