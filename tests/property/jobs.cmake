baton_test(property_transfer_jobs SOURCES jobs_prop.c
           LIBS bt_transfer_core bt_base LABELS property)
