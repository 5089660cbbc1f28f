"""What a redesign may not change: batches, resumes, what an audit lists, the attributes of errors."""
