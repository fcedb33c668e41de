# The checks and, for each, the proof that it can fail.
set(checks ${CMAKE_CURRENT_LIST_DIR})

function(baton_check name)
    cmake_parse_arguments(C "" "TIMEOUT" "ARGS;LABELS" ${ARGN})
    if(NOT C_TIMEOUT)
        set(C_TIMEOUT 120)
    endif()
    add_test(NAME check_${name} COMMAND ${checks}/${name}.sh ${C_ARGS})
    add_test(NAME check_${name}_selftest
             COMMAND ${checks}/${name}.sh --selftest)
    set_tests_properties(check_${name} check_${name}_selftest PROPERTIES
                         LABELS "checks;${C_LABELS}" SKIP_RETURN_CODE 77
                         TIMEOUT ${C_TIMEOUT})
endfunction()

# A build with sanitizers or coverage has their symbols in its archives, and
# the tree is the same for every preset: the dev build checks it.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND NOT BATON_SANITIZE
   AND NOT BATON_COVERAGE AND NOT BATON_FUZZ)
    foreach(check IN ITEMS banned format includes size)
        baton_check(${check} ARGS ${PROJECT_SOURCE_DIR})
    endforeach()

    get_property(pure_layers GLOBAL PROPERTY BATON_PURE_LAYERS)
    set(archives)
    foreach(layer IN LISTS pure_layers)
        list(APPEND archives $<TARGET_FILE:${layer}>)
    endforeach()
    baton_check(pure ARGS ${archives})
    baton_check(documented ARGS ${PROJECT_SOURCE_DIR} $<TARGET_FILE:baton>)

    if(CMAKE_BUILD_TYPE STREQUAL "Debug" AND CMAKE_EXPORT_COMPILE_COMMANDS)
        baton_check(tidy ARGS ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
                    LABELS tidy TIMEOUT 900)
        # Takes minutes, of processors that nobody else wants: from the start,
        # beside all but those that want to be alone.
        set_tests_properties(check_tidy PROPERTIES COST 1000)
    endif()

    # Every public header compiles on its own.
    add_test(NAME check_headers
             COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR}
                     --target all_verify_interface_header_sets)
    set_tests_properties(check_headers PROPERTIES LABELS checks
                         RUN_SERIAL TRUE TIMEOUT 300)
endif()
