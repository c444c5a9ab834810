"""What is generated in README.md and docs/, and checked there: tables, figures, sentences."""
