"""What is computed: problems, their references, and verification."""
