-- Check now what would be checked at the end of the transaction.
SET CONSTRAINTS ALL IMMEDIATE
